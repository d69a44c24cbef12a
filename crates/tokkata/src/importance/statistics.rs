//! What an importance matrix says of each weight and of each layer, as llama-imatrix shows it.

use super::{Importance, Inputs};

/// Means of squared inputs at or below this count as inactive.
const INACTIVE: f32 = 1e-5;

/// Of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorStatistics {
    /// Its layer.
    pub layer: Option<u32>,
    /// Its name without the layer.
    pub tensor: String,
    /// Sum of the means of squared inputs.
    pub total: f32,
    /// Smallest mean.
    pub min: f32,
    /// Largest mean.
    pub max: f32,
    /// Mean of the means.
    pub mean: f32,
    /// Standard deviation of the means.
    pub deviation: f32,
    /// Part of the columns that are active.
    pub active: f32,
    /// Columns.
    pub columns: usize,
    /// Entropy of the means, in bits.
    pub entropy: f32,
    /// Part of the columns more than one deviation above the mean.
    pub outliers: f32,
    /// Cosine of the angle to the same weight of the layer before.
    pub similarity: f32,
}

impl TensorStatistics {
    /// Entropy as a part of what equal columns would have.
    #[must_use]
    pub fn relative_entropy(&self) -> f32 {
        self.entropy / (self.columns as f32).log2()
    }
}

/// Averages over the weights of a layer, wide ones counting more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerStatistics {
    /// The layer.
    pub layer: u32,
    /// Of [`TensorStatistics::total`].
    pub total: f32,
    /// Of [`TensorStatistics::outliers`].
    pub outliers: f32,
    /// Of [`TensorStatistics::similarity`].
    pub similarity: f32,
}

/// Statistics of every weight that anything went through, by name, the strongest layer first.
#[must_use]
pub fn tensors(importance: &Importance) -> Vec<TensorStatistics> {
    let all = importance.entries.iter();
    let mut found: Vec<TensorStatistics> = all
        .filter_map(|(name, inputs)| {
            let mut found = tensor(name, &active_means(inputs))?;
            found.similarity = similarity(importance, name, inputs);
            Some(found)
        })
        .collect();
    found.sort_by(|a, b| {
        let by_total = || b.total.total_cmp(&a.total);
        a.tensor.cmp(&b.tensor).then_with(by_total)
    });
    found
}

/// Averages of each layer.
#[must_use]
pub fn layers(tensors: &[TensorStatistics]) -> Vec<LayerStatistics> {
    let mut numbers: Vec<u32> = tensors.iter().filter_map(|t| t.layer).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let one = |layer| {
        let own = tensors.iter().filter(|t| t.layer == Some(layer));
        let all: f32 = own.clone().map(|t| t.columns as f32).sum();
        let average = |of: fn(&TensorStatistics) -> f32| {
            own.clone().map(|t| t.columns as f32 * of(t)).sum::<f32>() / all
        };
        LayerStatistics {
            layer,
            total: average(|t| t.total),
            outliers: average(|t| t.outliers),
            similarity: average(|t| t.similarity),
        }
    };
    numbers.into_iter().map(one).collect()
}

/// Means of squared inputs, without experts that nothing went through.
fn active_means(inputs: &Inputs) -> Vec<f32> {
    let width = inputs.sums.len() / inputs.counts.len().max(1);
    let experts = inputs.sums.chunks(width.max(1)).zip(&inputs.counts);
    let used = experts.filter(|(_, count)| **count > 0);
    used.flat_map(|(sums, &count)| sums.iter().map(move |sum| sum / count as f32))
        .collect()
}

fn tensor(name: &str, means: &[f32]) -> Option<TensorStatistics> {
    let columns = means.len();
    let count = columns as f32;
    let total: f32 = means.iter().sum();
    let mean = total / count;
    let variance = means.iter().map(|x| x * x).sum::<f32>() / count - mean * mean;
    let deviation = variance.max(0.0).sqrt();
    let parts = means.iter().map(|x| x / total).filter(|&p| p > 0.0);
    let entropy = parts.fold(0.0, |sum, p| sum - p * p.log2());
    let far = means.iter().filter(|&x| (x - mean) / deviation > 1.0);
    let idle = means.iter().filter(|x| x.abs() <= INACTIVE);
    let (layer, tensor) = split(name);
    (columns > 0).then(|| TensorStatistics {
        layer,
        tensor,
        total,
        min: means.iter().copied().fold(f32::INFINITY, f32::min),
        max: means.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        mean,
        deviation,
        active: 1.0 - idle.count() as f32 / count,
        columns,
        entropy: if total > 0.0 { entropy } else { 0.0 },
        outliers: far.count() as f32 / count,
        similarity: 0.0,
    })
}

/// `blk.3.attn_q.weight` is `attn_q` of layer 3.
fn split(name: &str) -> (Option<u32>, String) {
    let inner = name.strip_suffix(".weight").unwrap_or(name);
    let layer = inner.strip_prefix("blk.").and_then(|r| r.split_once('.'));
    match layer.and_then(|(layer, rest)| Some((layer.parse().ok()?, rest))) {
        Some((layer, rest)) => (Some(layer), rest.to_owned()),
        None => (None, inner.to_owned()),
    }
}

fn similarity(importance: &Importance, name: &str, inputs: &Inputs) -> f32 {
    let before = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer = layer.parse::<u32>().ok()?.checked_sub(1)?;
        importance.entries.get(&format!("blk.{layer}.{rest}"))
    };
    let Some(before) = before() else { return 0.0 };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let length = |x: &[f32]| dot(x, x).sqrt();
    let (a, b) = (&inputs.sums, &before.sums);
    dot(a, b) / (length(a) * length(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sums: &[f32], count: u64) -> Inputs {
        Inputs {
            sums: sums.to_vec(),
            counts: vec![count],
        }
    }

    #[test]
    fn a_layer_is_an_average_of_its_weights() {
        let importance = Importance {
            entries: [
                (
                    "blk.0.up.weight".to_owned(),
                    entry(&[2.0, 2.0, 0.0, 0.0], 2),
                ),
                (
                    "blk.1.up.weight".to_owned(),
                    entry(&[2.0, 0.0, 2.0, 0.0], 2),
                ),
                ("blk.1.down.weight".to_owned(), entry(&[4.0, 4.0], 1)),
                ("output.weight".to_owned(), entry(&[1.0], 1)),
            ]
            .into(),
            ..Importance::default()
        };
        let found = tensors(&importance);
        let names: Vec<_> = found.iter().map(|t| t.tensor.as_str()).collect();
        assert_eq!(names, ["down", "output", "up", "up"]);
        let up = &found[3];
        assert_eq!((up.total, up.mean, up.deviation), (2.0, 0.5, 0.5));
        assert_eq!((up.active, up.entropy, up.outliers), (0.5, 1.0, 0.0));
        assert_eq!(up.relative_entropy(), 0.5);
        let layers = layers(&found);
        assert_eq!(layers[1].layer, 1);
        assert!((layers[1].total - (4.0 * 2.0 + 2.0 * 8.0) / 6.0).abs() < 1e-6);
        assert!((layers[1].similarity - 4.0 / 6.0 * 0.5).abs() < 1e-6);
    }
}
