//! The normal distribution, by which some configurations tell how many values a layer keeps.

use std::f64::consts::TAU;

/// The value below which a share `p` of a standard normal distribution lies.
pub(crate) fn quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    // Newton's steps from the middle approach the value from one side.
    let mut x = 0.0;
    for _ in 0..100 {
        let step = (share_below(x) - p) / density(x);
        x -= step;
        if step.abs() < 1e-15 {
            break;
        }
    }
    x
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / TAU.sqrt()
}

/// By the series x + x³/3 + x⁵/(3·5) + …, which converges everywhere.
fn share_below(x: f64) -> f64 {
    let (mut sum, mut term, mut odd) = (x, x, 1.0);
    while term.abs() > sum.abs() * 1e-17 {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    0.5 + sum * density(x)
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn known_quantiles() {
        let close = |p: f64, x: f64| assert!((quantile(p) - x).abs() < 1e-12, "{p}");
        close(0.5, 0.0);
        close(0.95, 1.644_853_626_951_472_2);
        close(0.25, -0.674_489_750_196_081_7);
        close(0.999, 3.090_232_306_167_813);
        assert_eq!(quantile(0.0), f64::NEG_INFINITY);
        assert_eq!(quantile(1.0), f64::INFINITY);
    }
}
