//! Tokens and templates.

use std::ffi::c_char;

use serde_json::Value;
use tokkata::{DecodeOptions, EncodeOptions};
use tokkata_requests::chat;
use tokkata_requests::fields::Fields;
use tokkata_requests::style::Style;
use tokkata_requests::talk::Rendered;

use crate::border::{fill, guard, list, place, text};
use crate::model::{Loaded, model};
use crate::status::{END, Error, OK, UNSUPPORTED};
use crate::types::tokkata_model;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_tokenize(
    model: *const tokkata_model,
    text: *const c_char,
    len: usize,
    flags: u32,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let options = EncodeOptions {
            add_special: flags & 1 != 0,
            parse_special: flags & 2 != 0,
        };
        let text = self::text(text, len, "text")?;
        let ids = model.service()?.tokenizer()?.encode(text, options);
        fill(&ids, (out, capacity), needed)
    })
}

/// The tokens of a caller, each of which is in the vocabulary.
///
/// # Safety
/// As [`list`].
pub(crate) unsafe fn known<'a>(
    model: &Loaded,
    ids: *const u32,
    n: usize,
) -> Result<&'a [u32], Error> {
    // SAFETY: the caller's promise.
    let ids = unsafe { list(ids, n, "ids") }?;
    let n_vocab = model.service()?.n_vocab();
    match ids.iter().find(|&&id| id >= n_vocab) {
        Some(id) => Err(Error::argument(format!(
            "token {id} is not in the vocabulary of {n_vocab} tokens"
        ))),
        None => Ok(ids),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_detokenize(
    model: *const tokkata_model,
    ids: *const u32,
    n: usize,
    flags: u32,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        let options = DecodeOptions {
            special: flags & 1 != 0,
            continues: flags & 2 != 0,
        };
        let ids = known(&model, ids, n)?;
        let bytes = model.service()?.tokenizer()?.decode(ids, options);
        fill(&bytes, (out.cast(), capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_token_bytes(
    model: *const tokkata_model,
    id: u32,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let model = self::model(model)?;
        known(&model, &raw const id, 1)?;
        let bytes = model.service()?.tokenizer()?.token_bytes(id);
        fill(bytes, (out.cast(), capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_token_special(
    model: *const tokkata_model,
    which: i32,
    id: *mut u32,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        let special = model.service()?.tokenizer()?.special();
        let found = match which {
            0 => special.bos,
            1 => special.eos,
            2 => special.pad,
            3 => special.unk,
            4 => special.sep,
            other => {
                let message = format!("which: found {other}, expected one of TOKKATA_TOKEN_...");
                return Err(Error::argument(message));
            }
        };
        // SAFETY: the caller's place.
        let place = unsafe { place(id, "id") }?;
        let Some(found) = found else { return Ok(END) };
        place.write(found);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_end_tokens(
    model: *const tokkata_model,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        // SAFETY: the caller's buffer.
        unsafe { fill(model.service()?.tokenizer()?.eog(), (out, capacity), needed) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_template_source(
    model: *const tokkata_model,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    guard(|| {
        let model = self::model(model)?;
        let template = model.service()?.template();
        let none = || Error::new(UNSUPPORTED, "the model has no chat template");
        let source = template.ok_or_else(none)?.source();
        // SAFETY: the caller's buffer.
        unsafe { fill(source.as_bytes(), (out.cast(), capacity), needed) }
    })
}

/// The prompt of a chat request.
///
/// # Safety
/// As [`text`].
unsafe fn rendered(
    model: *const tokkata_model,
    json: *const c_char,
    len: usize,
) -> Result<Rendered, Error> {
    let model = self::model(model)?;
    // SAFETY: the caller's promise.
    let text = unsafe { text(json, len, "json") }?;
    let mut fields = Fields::body(parsed(text)?)?;
    fields.text("model")?;
    let (talk, ..) = chat::read(&Style::default(), model.served()?, &mut fields)?;
    Ok(talk.render(model.served()?)?)
}

/// A body of a request.
pub(crate) fn parsed(text: &str) -> Result<Value, Error> {
    serde_json::from_str(text).map_err(|e| Error::argument(format!("the request is no JSON: {e}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_apply_template(
    model: *const tokkata_model,
    json: *const c_char,
    len: usize,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let rendered = rendered(model, json, len)?;
        fill(rendered.text.as_bytes(), (out.cast(), capacity), needed)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_chat_tokens(
    model: *const tokkata_model,
    json: *const c_char,
    len: usize,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let rendered = rendered(model, json, len)?;
        fill(&rendered.ids, (out, capacity), needed)
    })
}
