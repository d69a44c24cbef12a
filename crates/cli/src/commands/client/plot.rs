//! A measurement drawn: for each figure, which share of the answers is not above what.

use std::fmt::Write as _;

use super::figures::Answer;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const EDGE: f64 = 40.0;

/// The measurement as SVG.
pub(super) fn svg(answers: &[Answer]) -> String {
    let gaps = answers
        .iter()
        .flat_map(|a| a.gaps.iter().copied())
        .collect();
    let plots: [(&str, Vec<f64>); 3] = [
        ("first token, ms", answers.iter().map(|a| a.first).collect()),
        ("between tokens, ms", gaps),
        (
            "whole answer, ms",
            answers.iter().map(|a| a.whole).collect(),
        ),
    ];
    let whole = WIDTH * plots.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {whole} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (i, (title, values)) in plots.into_iter().enumerate() {
        curve(&mut out, WIDTH * i as f64, title, values);
    }
    out + "</svg>\n"
}

fn curve(out: &mut String, left: f64, title: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let most = values.last().copied().unwrap_or(0.0).max(1e-6) * 1e3;
    let (x0, y0) = (left + EDGE, HEIGHT - EDGE);
    let (w, h) = (WIDTH - 1.5 * EDGE, HEIGHT - 2.0 * EDGE);
    let _ = writeln!(out, "<text x=\"{x0}\" y=\"{}\">{title}</text>", EDGE - 12.0);
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let (x, y) = (x0 + share * w, y0 - share * h);
        let _ = writeln!(
            out,
            "<path d=\"M{x0} {y}h{w}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0} %</text>",
            x0 - 4.0,
            y + 4.0,
            share * 100.0
        );
        let _ = writeln!(
            out,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{:.3}</text>",
            y0 + 16.0,
            share * most
        );
    }
    let count = values.len().max(1) as f64;
    let mut path = format!("M{x0} {y0}");
    // More points than pixels show nothing.
    let stride = (values.len() / 400).max(1);
    for (i, value) in values
        .iter()
        .enumerate()
        .filter(|(i, _)| i % stride == 0 || i + 1 == values.len())
    {
        let (x, y) = (x0 + value * 1e3 / most * w, y0 - (i + 1) as f64 / count * h);
        let _ = write!(path, "H{x:.1}V{y:.1}");
    }
    let _ = writeln!(
        out,
        "<path d=\"{path}\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_curve() {
        let answer = Answer {
            first: 0.1,
            whole: 0.5,
            gaps: vec![0.1, 0.2],
            ..Answer::default()
        };
        let drawn = svg(&[answer.clone(), answer]);
        assert_eq!(drawn.matches("stroke=\"#06c\"").count(), 3);
        assert!(drawn.starts_with("<svg") && drawn.ends_with("</svg>\n") && !drawn.contains("NaN"));
        assert!(!svg(&[Answer::default()]).contains("NaN") && !svg(&[]).contains("NaN"));
    }
}
