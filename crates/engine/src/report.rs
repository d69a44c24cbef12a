//! How likely tokens are by a row of logits that the host has.

use tokkata_ir::sample::{BadLogits, Fixed, MOST_LISTED, argmax, report};
use tokkata_ir::{Logprob, Logprobs};

/// What a row of logits says, before sampling parameters, of `token` and beside it of the tokens `told`, or where there
/// are none of the likeliest `most`, best first: natural logarithms, the same that devices find.
///
/// # Errors
/// [`BadLogits`] as for a draw.
///
/// # Panics
/// When the vocabulary has no such token.
pub(crate) fn logprobs(
    logits: &[f32],
    token: u32,
    (most, told): (usize, &[u32]),
) -> Result<Logprobs, BadLogits> {
    let fixed = |id: u32| Fixed::new(logits[id as usize]).unwrap_or(Fixed::EXCLUDED);
    let best = argmax(logits)?;
    let found = report(logits, best, most)?;
    let offset = fixed(best).minus(found.token);
    let of = |id: u32| Logprob {
        token: id,
        logprob: fixed(id).minus(offset).to_f32(),
    };
    let top = if !told.is_empty() {
        told.iter().copied().map(of).collect()
    } else if most <= MOST_LISTED {
        found.best.into_iter().map(|(id, _)| of(id)).collect()
    } else {
        likeliest(logits, most).into_iter().map(of).collect()
    };
    Ok(Logprobs {
        picked: of(token),
        top,
    })
}

/// Tokens by their logits, the lowest id first among equals.
fn likeliest(logits: &[f32], most: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order = |a: &u32, b: &u32| {
        let (x, y) = (logits[*a as usize], logits[*b as usize]);
        y.partial_cmp(&x)
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(a.cmp(b))
    };
    if most < ids.len() {
        ids.select_nth_unstable_by(most, order);
        ids.truncate(most);
    }
    ids.sort_unstable_by(order);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37) % n) as f32 / 8.0).collect()
    }

    #[test]
    fn the_host_finds_what_devices_do() {
        let row = row(101);
        let device = report(&row, 7, 20).unwrap();
        let all = logprobs(&row, 7, (101, &[])).unwrap();
        assert_eq!(all.picked.logprob, device.token.to_f32());
        let pairs = |l: &Logprob| (l.token, l.logprob);
        let first: Vec<(u32, f32)> = all.top.iter().take(20).map(pairs).collect();
        let want: Vec<(u32, f32)> = device.best.iter().map(|b| (b.0, b.1.to_f32())).collect();
        assert_eq!(first, want);
        assert_eq!(all.top.len(), 101);
        let few = logprobs(&row, 7, (3, &[])).unwrap();
        assert_eq!(few.top, all.top[..3]);
    }

    #[test]
    fn chosen_tokens_are_told_in_their_order_and_instead_of_the_likeliest() {
        let mut row = row(64);
        row[5] = f32::NEG_INFINITY;
        let found = logprobs(&row, 7, (3, &[9, 5, 7])).unwrap();
        let ids: Vec<u32> = found.top.iter().map(|l| l.token).collect();
        assert_eq!(ids, [9, 5, 7]);
        assert_eq!(found.top[1].logprob, f32::NEG_INFINITY);
        assert_eq!(found.top[2], found.picked);
        row[3] = f32::NAN;
        assert_eq!(logprobs(&row, 7, (3, &[])), Err(BadLogits::NotANumber));
    }
}
