//! The text of a comparison, in llama-perplexity's layout.

use std::fmt::Write;

use tokkata::perplexity::{Divergence, Estimate, percentile};

/// Positions below which percentiles say nothing.
const LEAST_COUNT: u64 = 100;

pub(super) const HEAD: &str = "chunk             PPL               ln(PPL(Q)/PPL(base))          KL Divergence              Δp RMS            Same top p";

/// The state after a chunk.
pub(super) fn line(chunk: usize, all: &Divergence) -> String {
    let (ppl, ratio) = (all.own.exponential(), all.log_ratio());
    let (kld, rms, top) = (
        all.divergence.estimate(),
        all.rms_difference(),
        all.same_top(),
    );
    format!(
        "{chunk:4}    {:9.4} ± {:9.4}    {:10.5} ± {:10.5}    {:10.5} ± {:10.5}    {:6.3} ± {:6.3} %    {:6.3} ± {:6.3} %",
        ppl.mean,
        ppl.error,
        ratio.mean,
        ratio.error,
        kld.mean,
        kld.error,
        100.0 * rms.mean,
        100.0 * rms.error,
        100.0 * top.mean,
        100.0 * top.error,
    )
}

/// The state after everything; nothing after so few positions that it would mean nothing.
pub(super) fn summary(all: &mut Divergence) -> String {
    if all.own.count < LEAST_COUNT {
        return String::new();
    }
    all.divergences.sort_by(f32::total_cmp);
    all.differences.sort_by(f32::total_cmp);
    let mut text = String::from("\n====== Perplexity statistics ======\n");
    let ratio = all.log_ratio();
    let quotient = Estimate {
        mean: ratio.mean.exp(),
        error: ratio.mean.exp() * ratio.error,
    };
    estimate(
        &mut text,
        "Mean PPL(Q)                   :",
        all.own.exponential(),
    );
    estimate(
        &mut text,
        "Mean PPL(base)                :",
        all.base.exponential(),
    );
    estimate(&mut text, "Mean ln(PPL(Q)/PPL(base))     :", ratio);
    estimate(&mut text, "Mean PPL(Q)/PPL(base)         :", quotient);
    text += "\n====== KL divergence statistics ======\n";
    estimate(&mut text, "Mean    KLD:", all.divergence.estimate());
    percentiles(&mut text, "KLD", &all.divergences, |x| format!("{x:10.6}"));
    text += "\n====== Token probability statistics ======\n";
    percent(&mut text, "Mean    Δp:", all.difference.estimate());
    percentiles(&mut text, "Δp", &all.differences, |x| {
        format!("{:6.3}%", 100.0 * x)
    });
    percent(&mut text, "RMS Δp    :", all.rms_difference());
    percent(&mut text, "Same top p:", all.same_top());
    text
}

fn estimate(text: &mut String, name: &str, e: Estimate) {
    let _ = writeln!(text, "{name} {:10.6} ± {:10.6}", e.mean, e.error);
}

fn percent(text: &mut String, name: &str, e: Estimate) {
    let (mean, error) = (100.0 * e.mean, 100.0 * e.error);
    let _ = writeln!(text, "{name} {mean:6.3} ± {error:5.3} %");
}

fn percentiles(text: &mut String, what: &str, sorted: &[f32], show: impl Fn(f32) -> String) {
    let places = [
        ("Maximum", 1.0),
        ("99.9%  ", 0.999),
        ("99.0%  ", 0.99),
        ("95.0%  ", 0.95),
        ("90.0%  ", 0.9),
        ("Median ", 0.5),
        ("10.0%  ", 0.1),
        (" 5.0%  ", 0.05),
        (" 1.0%  ", 0.01),
        (" 0.1%  ", 0.001),
        ("Minimum", 0.0),
    ];
    for (name, fraction) in places {
        let value = show(percentile(sorted, fraction));
        let _ = writeln!(text, "{name} {what}: {value}");
    }
}
