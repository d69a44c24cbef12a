//! Statistics of an importance matrix as tables.

use std::io::Write;

use anyhow::Result;
use tokkata::importance::{Importance, layers, tensors};

/// Prints a line for each weight, then one for each layer.
pub(super) fn show(importance: &Importance) -> Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let tensors = tensors(importance);
    writeln!(
        out,
        "{:>5} {:<20} {:>12} {:>10} {:>11} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>8} {:>7}",
        "layer",
        "tensor",
        "total",
        "min",
        "max",
        "mean",
        "deviation",
        "active",
        "columns",
        "entropy",
        "relative",
        "outliers",
        "similar"
    )?;
    for t in &tensors {
        let layer = t.layer.map_or("-".to_owned(), |layer| layer.to_string());
        writeln!(
            out,
            "{layer:>5} {:<20} {:>12.2} {:>10.4} {:>11.4} {:>9.2} {:>9.2} {:>8.2}% {:>7} {:>9.4} {:>8.2}% {:>7.2}% {:>7.4}",
            t.tensor,
            t.total,
            t.min,
            t.max,
            t.mean,
            t.deviation,
            t.active * 100.0,
            t.columns,
            t.entropy,
            t.relative_entropy() * 100.0,
            t.outliers * 100.0,
            t.similarity
        )?;
    }
    writeln!(
        out,
        "\n{:>5} {:>12} {:>9} {:>8}",
        "layer", "total", "outliers", "similar"
    )?;
    for l in layers(&tensors) {
        let outliers = l.outliers * 100.0;
        writeln!(
            out,
            "{:>5} {:>12.2} {outliers:>8.4}% {:>8.4}",
            l.layer, l.total, l.similarity
        )?;
    }
    Ok(out.flush()?)
}
