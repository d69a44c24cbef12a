//! A page of its own: a phase, its layers, their kernels, each as wide as its time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::{Report, Row, Section};

const STYLE: &str = "body{font:14px sans-serif;margin:2em}\
.bar{display:flex;width:100%;height:1.6em;margin-bottom:2px}\
.bar div{overflow:hidden;white-space:nowrap;border-right:1px solid #fff;font-size:11px;line-height:1.6em;min-width:0}\
.bar div:hover{outline:2px solid #000}\
.legend{columns:16em;font-size:12px;padding:0;list-style:none}\
.legend i{display:inline-block;width:1em;height:1em;margin-right:.5em;vertical-align:-.15em}";

/// Parts of a line in a hundred that a letter takes on a narrow page.
const LETTER: f64 = 0.9;

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let mut text = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style><h1>{0}</h1>\n",
        escaped(&report.model)
    );
    let machine = escaped(&report.machine());
    let _ = writeln!(
        text,
        "<p>On {machine}. Widths are time; point at a bar for its figures.</p>"
    );
    for section in &report.sections {
        text += &phase(section);
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

fn phase(section: &Section) -> String {
    let mut layers: BTreeMap<Option<u32>, Vec<&Row>> = BTreeMap::new();
    for row in &section.rows {
        layers.entry(row.layer).or_default().push(row);
    }
    let wall = section.wall_ns as f64;
    let mut text = format!(
        "<h2>{}: {} tokens, {:.1} tokens/s</h2>\n",
        section.name,
        section.tokens,
        1e9 * section.tokens as f64 / wall.max(1.0)
    );
    let bar = |rows: &[&Row]| rows.iter().map(|r| r.run_ns + r.wait_ns).sum::<u64>();
    let widest = layers.values().map(|rows| bar(rows)).max().unwrap_or(1);
    let names: Vec<(String, u64)> = layers
        .iter()
        .map(|(layer, rows)| (layer_name(*layer), bar(rows)))
        .collect();
    let all: u64 = names.iter().map(|n| n.1).sum();
    let blocks: Vec<String> = names
        .iter()
        .map(|(name, ns)| block(name, name, *ns, all))
        .collect();
    text += &line(&blocks);
    text += &legend(section);
    for (layer, rows) in &layers {
        let _ = writeln!(text, "<small>{}</small>", layer_name(*layer));
        let blocks: Vec<String> = rows.iter().map(|row| kernel(row, widest)).collect();
        text += &line(&blocks);
    }
    text
}

/// Which colour is which role, and what each took of the phase, the most first.
fn legend(section: &Section) -> String {
    let mut roles: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &section.rows {
        *roles.entry(&row.role).or_default() += row.run_ns + row.wait_ns;
    }
    let all: u64 = roles.values().sum();
    let mut roles: Vec<(&str, u64)> = roles.into_iter().collect();
    roles.sort_by_key(|r| std::cmp::Reverse(r.1));
    let one = |(role, ns): &(&str, u64)| {
        let share = 100.0 * *ns as f64 / all.max(1) as f64;
        let (color, role) = (color(role), escaped(role));
        format!("<li><i style=\"background:{color}\"></i>{role} {share:.1} %</li>")
    };
    let items: Vec<String> = roles.iter().map(one).collect();
    format!("<ul class=\"legend\">{}</ul>\n", items.concat())
}

fn layer_name(layer: Option<u32>) -> String {
    layer.map_or("outside the layers".to_owned(), |l| format!("layer {l}"))
}

fn line(blocks: &[String]) -> String {
    format!("<div class=\"bar\">{}</div>\n", blocks.concat())
}

fn kernel(row: &Row, widest: u64) -> String {
    let spent = row.run_ns + row.wait_ns;
    let bytes = row.cost.weight_bytes + row.cost.cache_bytes;
    let share = match row.roofs.is_empty() {
        true => String::new(),
        false => {
            let share = 100.0 * row.least_ns / spent.max(1) as f64;
            format!(", {share:.0} % of the roofline")
        }
    };
    let facts = format!(
        "{} {}: run {:.1} µs, wait {:.1} µs, {:.1} GB/s, {:.1} GFLOP/s{share}",
        row.kernel,
        row.role,
        row.run_ns as f64 / 1e3,
        row.wait_ns as f64 / 1e3,
        bytes as f64 / row.run_ns.max(1) as f64,
        row.cost.flops as f64 / row.run_ns.max(1) as f64,
    );
    block(&row.role, &facts, spent, widest)
}

/// The colour of a name, which follows from it alone.
fn color(name: &str) -> String {
    let hue = name
        .bytes()
        .fold(7_u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()))
        % 360;
    format!("hsl({hue},60%,75%)")
}

/// A rectangle, with its name where that fits.
fn block(name: &str, facts: &str, ns: u64, all: u64) -> String {
    let width = 100.0 * ns as f64 / all.max(1) as f64;
    let label = match name.chars().count() as f64 * LETTER <= width {
        true => escaped(name),
        false => String::new(),
    };
    format!(
        "<div style=\"width:{width:.3}%;background:{}\" title=\"{}\">{label}</div>",
        color(name),
        escaped(facts),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_whole_or_not_at_all() {
        assert!(block("attn_q", "facts", 50, 100).ends_with(">attn_q</div>"));
        assert!(block("attn_q", "facts", 5, 100).ends_with("\"facts\"></div>"));
        assert!(block("layer 0", "layer 0", 1, 1).contains(&color("layer 0")));
    }

    #[test]
    fn the_legend_names_every_colour_of_the_kernels() {
        // A third of each is waited for.
        let row = |layer, role: &str, ns: u64| Row {
            layer,
            role: role.to_owned(),
            kernel: "matmul",
            wait_ns: ns / 3,
            run_ns: ns - ns / 3,
            cost: tokkata::cost::Cost::default(),
            least_ns: 0.0,
            roofs: Vec::new(),
        };
        let section = Section {
            name: "prompt",
            tokens: 8,
            wall_ns: 1000,
            rows: vec![
                row(Some(0), "attn_q", 150),
                row(Some(1), "attn_q", 150),
                row(Some(1), "ffn<down>", 650),
                row(None, "output", 50),
            ],
        };
        let page = phase(&section);
        let (_, legend) = page.split_once("<ul class=\"legend\">").unwrap();
        let (legend, _) = legend.split_once("</ul>").unwrap();
        let item = |name: &str, share: &str, role: &str| {
            let color = color(role);
            format!("<li><i style=\"background:{color}\"></i>{name} {share} %</li>")
        };
        let items = [
            item("ffn&lt;down>", "65.0", "ffn<down>"),
            item("attn_q", "30.0", "attn_q"),
            item("output", "5.0", "output"),
        ];
        assert_eq!(legend, items.concat(), "what took the most comes first");
        for row in &section.rows {
            let drawn = format!(
                "background:{}\" title=\"matmul {}",
                color(&row.role),
                escaped(&row.role)
            );
            assert!(page.contains(&drawn), "{drawn}");
        }
    }
}
