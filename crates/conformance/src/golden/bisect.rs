//! Where a run leaves the right way: two devices value by value, or a device beside the oracle's named tensors.

use tokkata_archs::Registry;
use tokkata_ir::Device;

use super::{AGREES, Golden, Rows};
use crate::generate;
use crate::models::{Failure, Feeding, Seen, Target, nmse, trace};

/// A tensor of the oracle's graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Its name, with the layer behind a dash.
    pub name: String,
    /// The op that made it.
    pub op: String,
    /// Its values.
    pub floats: Vec<f32>,
}

/// Every value of a golden's run.
///
/// # Errors
/// The text of whatever failed.
pub fn values(
    golden: &Golden,
    registry: &Registry,
    device: &dyn Device,
) -> Result<Vec<Seen>, Failure> {
    let file = generate::model(golden)?;
    let (encoder, ids) = match golden.rows {
        Rows::Decoder => (golden.ids(), golden.decoder_ids()),
        _ => (Vec::new(), golden.ids()),
    };
    let ctx = golden.positions + golden.block();
    let target = Target {
        output: golden.rows.output(),
        encoder: &encoder,
        ..Target::new(device, ctx, Feeding::WHOLE)
    };
    trace(&file, registry, &target, &ids)
}

/// The first value that differs between two runs of one program.
#[must_use]
pub fn first_difference(ours: &[Seen], theirs: &[Seen]) -> Option<String> {
    let pairs = ours.iter().zip(theirs).enumerate();
    let differs = |(_, (a, b)): &(usize, (&Seen, &Seen))| {
        let error = nmse(&a.floats, &b.floats);
        error > AGREES || (error.is_nan() && a.floats != b.floats)
    };
    let (index, (seen, other)) = pairs.into_iter().find(differs)?;
    let error = nmse(&seen.floats, &other.floats);
    Some(format!(
        "value {index} is the first that differs, by {error:.1e}: {} at {}",
        seen.op.name(),
        seen.site
    ))
}

/// How the oracle's tensors are found among our values: as sets of numbers, since both order columns as they like.
#[must_use]
pub fn beside_oracle(ours: &[Seen], theirs: &[Named]) -> String {
    let sorted: Vec<Vec<f32>> = ours.iter().map(|s| in_order(&s.floats)).collect();
    let mut last = "nothing".to_owned();
    let mut absent = Vec::new();
    for tensor in theirs {
        let want = in_order(&tensor.floats);
        let fits = |got: &Vec<f32>| got.len() == want.len() && nmse(got, &want) <= AGREES;
        match sorted.iter().position(fits) {
            Some(at) => {
                if tensor.name.starts_with("l_out") || absent.is_empty() {
                    let (op, site) = (ours[at].op.name(), &ours[at].site);
                    last = format!("{} is {op} at {site}", tensor.name);
                    absent.clear();
                }
            }
            None => absent.push(format!("{} ({})", tensor.name, tensor.op)),
        }
    }
    absent.truncate(12);
    format!(
        "the last that agrees: {last}; not found behind it: {}",
        absent.join(", ")
    )
}

fn in_order(floats: &[f32]) -> Vec<f32> {
    let mut floats = floats.to_vec();
    floats.sort_by(f32::total_cmp);
    floats
}

#[cfg(test)]
mod tests {
    use tokkata_ir::{Act, Op, Site};

    use super::*;

    fn seen(floats: &[f32]) -> Seen {
        Seen {
            op: Op::Unary(Act::Relu),
            site: Site::global("x"),
            floats: floats.to_vec(),
        }
    }

    fn named(name: &str, floats: &[f32]) -> Named {
        Named {
            name: name.to_owned(),
            op: "ADD".to_owned(),
            floats: floats.to_vec(),
        }
    }

    #[test]
    fn the_first_wrong_value_is_named() {
        let right = [seen(&[1.0, 2.0]), seen(&[3.0]), seen(&[4.0])];
        let wrong = [seen(&[1.0, 2.0]), seen(&[3.1]), seen(&[5.0])];
        assert_eq!(first_difference(&right, &right), None);
        let text = first_difference(&right, &wrong).unwrap();
        assert!(text.starts_with("value 1 is the first"), "{text}");
    }

    #[test]
    fn the_oracle_s_tensors_are_found_in_any_order() {
        let theirs = [
            named("attn_norm-0", &[2.0, 1.0]),
            named("ffn_out-0", &[9.0]),
            named("l_out-0", &[3.0]),
            named("l_out-1", &[7.0]),
        ];
        let text = beside_oracle(&[seen(&[1.0, 2.0]), seen(&[3.0])], &theirs);
        assert!(text.contains("l_out-0 is"), "{text}");
        assert!(
            text.ends_with("not found behind it: l_out-1 (ADD)"),
            "{text}"
        );
    }
}
