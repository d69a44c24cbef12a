//! What a measurement of a server comes to.

use serde_json::{Value, json};

/// One answer: seconds from its call.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) first: f64,
    pub(super) whole: f64,
    /// Between one piece and the next.
    pub(super) gaps: Vec<f64>,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) tokens: u64,
}

/// Limits under which an answer is good, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    pub(super) first: Option<f64>,
    pub(super) gap: Option<f64>,
    pub(super) whole: Option<f64>,
}

impl Limits {
    /// Reads `ttft:MS`, `itl:MS` and `e2e:MS`.
    pub(super) fn read(texts: &[String]) -> Result<Self, String> {
        let mut limits = Limits::default();
        for text in texts.iter().flat_map(|t| t.split([',', ' '])) {
            let parts = text.split_once(':');
            let value = parts
                .and_then(|(_, ms)| ms.parse::<f64>().ok())
                .map(|ms| ms / 1e3);
            let value = value.filter(|v| v.is_finite() && *v > 0.0);
            let place = match parts.map(|p| p.0) {
                Some("ttft") => &mut limits.first,
                Some("itl" | "tpot") => &mut limits.gap,
                Some("e2e" | "e2el") => &mut limits.whole,
                _ => {
                    return Err(format!(
                        "found '{text}', expected ttft:MS, itl:MS or e2e:MS"
                    ));
                }
            };
            *place = Some(value.ok_or_else(|| format!("found '{text}', expected milliseconds"))?);
        }
        Ok(limits)
    }

    fn hold(self, answer: &Answer) -> bool {
        let below = |limit: Option<f64>, x: f64| limit.is_none_or(|l| x <= l);
        below(self.first, answer.first)
            && below(self.gap, answer.per_token())
            && below(self.whole, answer.whole)
    }
}

impl Answer {
    /// Seconds per token after the first.
    pub(super) fn per_token(&self) -> f64 {
        match self.tokens {
            0 | 1 => 0.0,
            n => (self.whole - self.first) / (n - 1) as f64,
        }
    }
}

/// The value that so many percent are not above.
pub(super) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let place = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted
        .get(place.saturating_sub(1))
        .or(sorted.last())
        .copied()
        .unwrap_or(0.0)
}

/// The spread of a figure, in milliseconds.
pub(super) fn spread(mut values: Vec<f64>) -> Value {
    values.sort_by(f64::total_cmp);
    let mean = values.iter().fold(0.0, |a, b| a + b) / values.len().max(1) as f64;
    let ms = |x: f64| (x * 1e6).round() / 1e3;
    let at = |p: f64| ms(percentile(&values, p));
    json!({"mean": ms(mean), "p50": at(50.0), "p90": at(90.0), "p95": at(95.0), "p99": at(99.0), "max": at(100.0)})
}

/// All figures of a measurement that took so many seconds.
pub(super) fn figures(answers: &[Answer], failed: usize, seconds: f64, limits: Limits) -> Value {
    let sum = |of: fn(&Answer) -> u64| answers.iter().map(of).sum::<u64>();
    let (tokens, prompt) = (sum(|a| a.tokens), sum(|a| a.prompt_tokens));
    let good = answers.iter().filter(|a| limits.hold(a)).count();
    let rate = |n: f64| (n / seconds.max(1e-9) * 1e3).round() / 1e3;
    let of = |f: fn(&Answer) -> f64| spread(answers.iter().map(f).collect());
    json!({
        "requests": answers.len(),
        "failed": failed,
        "seconds": (seconds * 1e3).round() / 1e3,
        "prompt_tokens": prompt,
        "cached_tokens": sum(|a| a.cached_tokens),
        "output_tokens": tokens,
        "requests_per_second": rate(answers.len() as f64),
        "output_tokens_per_second": rate(tokens as f64),
        "tokens_per_second": rate((tokens + prompt) as f64),
        "good": good,
        "goodput_requests_per_second": rate(good as f64),
        "ttft_ms": of(|a| a.first),
        "tpot_ms": of(Answer::per_token),
        "itl_ms": spread(answers.iter().flat_map(|a| a.gaps.iter().copied()).collect()),
        "e2e_ms": of(|a| a.whole),
    })
}

/// The figures as a table.
pub(super) fn table(figures: &Value) -> String {
    let mut out = String::new();
    for (name, value) in figures.as_object().into_iter().flatten() {
        if value.is_object() {
            continue;
        }
        out += &format!("{:<28} {value:>12}\n", name.replace('_', " "));
    }
    let columns = ["mean", "p50", "p90", "p95", "p99", "max"];
    out += &format!("\n{:<10}", "ms");
    columns.iter().for_each(|c| out += &format!(" {c:>10}"));
    out.push('\n');
    for name in ["ttft", "tpot", "itl", "e2e"] {
        let row = &figures[format!("{name}_ms")];
        out += &format!("{name:<10}");
        for column in columns {
            out += &format!(" {:>10.2}", row[column].as_f64().unwrap_or(0.0));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 50.0);
        assert_eq!(
            (percentile(&values, 99.0), percentile(&values, 100.0)),
            (99.0, 100.0)
        );
        assert_eq!(
            (percentile(&[3.0], 50.0), percentile(&[], 50.0)),
            (3.0, 0.0)
        );
    }

    #[test]
    fn an_answer_is_good_below_every_limit() {
        let limits = Limits::read(&["ttft:100,itl:10".to_owned()]).expect("limits");
        let answer = |first: f64, whole: f64| Answer {
            first,
            whole,
            tokens: 11,
            ..Answer::default()
        };
        let all = [answer(0.1, 0.2), answer(0.2, 0.3), answer(0.1, 0.3)];
        let figures = figures(&all, 1, 2.0, limits);
        assert_eq!(
            (&figures["good"], &figures["output_tokens_per_second"]),
            (&json!(1), &json!(16.5))
        );
        assert!(table(&figures).contains("ttft"));
        assert!(
            Limits::read(&["speed:1".to_owned()]).is_err()
                && Limits::read(&["ttft:x".to_owned()]).is_err()
        );
    }
}
