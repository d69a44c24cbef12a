//! Draws from logits that a caller has.

use tokkata::EngineError;
use tokkata::sample::{self, BadLogits, Mask, Scratch};

use crate::border::{guard, list, options, place};
use crate::request::sampling;
use crate::status::{Error, OK};
use crate::types::tokkata_sample_options;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokkata_sample(
    logits: *const f32,
    n: usize,
    options: *const tokkata_sample_options,
    token: *mut u32,
) -> i32 {
    // SAFETY: pointers of the caller, as the header says.
    guard(|| unsafe {
        let (logits, token) = (list(logits, n, "logits")?, place(token, "token")?);
        if logits.is_empty() {
            return Err(Error::argument("logits: found none"));
        }
        let given = self::options(options, "options")?;
        let biases = list(given.biases, given.n_biases, "biases")?;
        let beyond = |id: u32| id as usize >= logits.len();
        if let Some(bias) = biases.iter().find(|b| beyond(b.token)) {
            return Err(Error::argument(format!(
                "token {} is beyond the logits",
                bias.token
            )));
        }
        let recent = list(given.recent, given.n_recent, "recent")?;
        if let Some(id) = recent.iter().find(|&&id| beyond(id)) {
            return Err(Error::argument(format!("token {id} is beyond the logits")));
        }
        let mask = list(given.mask, given.n_mask, "mask")?;
        let mask = (!mask.is_empty()).then(|| Mask::new(mask.to_vec()));
        let sampling = sampling(&self::options(given.sampling, "sampling")?, biases);
        sampling.check().map_err(EngineError::from)?;
        let sampler = sampling.sampler();
        let side = sampler.side(recent, mask, Vec::new());
        let row = side.row(logits, given.position);
        let drawn = sample::sample(&sampler.record, &row, &mut Scratch::default());
        token.write(drawn.map_err(|bad| match bad {
            BadLogits::NotANumber => Error::argument("a logit is not a number"),
            BadLogits::NoCandidate => Error::from(EngineError::NoCandidate),
        })?);
        Ok(OK)
    })
}
