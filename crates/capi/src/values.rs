//! Vectors and scores of texts.

use std::ffi::c_char;

use tokkata::{Answer, EventKind, Pooling, Urgency, normalize, pair};

use crate::border::{fill, guard, list, text};
use crate::model::model;
use crate::status::{Error, UNSUPPORTED};
use crate::types::{tokkata_model, tokkata_text};

/// All values of an answer.
fn collected(mut answer: Answer) -> Result<Vec<f32>, Error> {
    let mut all = Vec::new();
    while let Some(event) = answer.next_blocking() {
        match event {
            EventKind::Values { values, .. } => all.extend(values),
            EventKind::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(all)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_embed(
    model: *const tokkata_model,
    text: *const c_char,
    len: usize,
    normalize: i32,
    out: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let service = model.service()?;
        let text = self::text(text, len, "text")?;
        let ids = service.checkpoint().encode_text(text.as_bytes())?;
        let width = service.vector_width()?;
        let mut rows = collected(service.vector(ids, Urgency::default())?)?;
        if service.pooling() != Some(Pooling::None) {
            // Of a pooled output the newest row stands for all before it.
            rows.drain(..rows.len().saturating_sub(width));
        }
        if normalize != 0 {
            rows.chunks_mut(width.max(1)).for_each(self::normalize);
        }
        fill(&rows, (out, capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_rerank(
    model: *const tokkata_model,
    query: *const c_char,
    query_len: usize,
    texts: *const tokkata_text,
    n_texts: usize,
    out: *mut f32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let service = model.service()?;
        if service.pooling() != Some(Pooling::Rank) {
            let message = "the model was not loaded to rank; load it with TOKKATA_POOL_RANK";
            return Err(Error::new(UNSUPPORTED, message));
        }
        let query = text(query, query_len, "query")?;
        let mut answers = Vec::new();
        for one in list(texts, n_texts, "texts")? {
            let ids = pair(
                service.checkpoint(),
                query,
                text(one.data, one.len, "texts")?,
            )?;
            answers.push(service.vector(ids, Urgency::default())?);
        }
        let scores = answers.into_iter().map(|answer| {
            let scores = collected(answer)?;
            Ok(scores.first().copied().unwrap_or(f32::NAN))
        });
        let scores: Result<Vec<f32>, Error> = scores.collect();
        fill(&scores?, (out, capacity), needed)
    })
}
