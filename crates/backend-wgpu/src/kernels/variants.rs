//! Every variant of every kernel that lowering asks for, as text for tools that read kernels without a GPU.

use tokkata_core::DType;

use super::{is_cooperative, text};
use crate::choices::Choices;
use crate::formats;
use crate::gpu::Matrices;
use crate::layout;
use crate::lower::attention::{own_of_prompts, own_of_replies};
use crate::lower::fused::{made, runs};
use crate::lower::linear::{halved_tiles, how_halved};
use crate::lower::several;
use crate::params::NONE;
use crate::preprocess::Constants;

/// A module as wgpu gets it.
#[derive(Clone, Debug)]
pub struct Module {
    /// Its file, and the format of weights that it is for.
    pub name: String,
    /// Its own constants.
    pub variant: String,
    /// WGSL as naga reads it; others want `enable subgroups;` before it where it says so.
    pub text: String,
    /// Whether it uses subgroups.
    pub subgroups: bool,
    /// Whether it needs cooperative matrices and halves, of which DirectX and browsers know nothing.
    pub cooperative: bool,
}

/// A file with constants of its own.
pub(crate) type Variant = (&'static str, Vec<(&'static str, u32)>);

/// Constants of every module.
fn base(subgroups: u32) -> Constants {
    let mut all = layout::part_names();
    let tables = formats::tables().1;
    all.extend(tables.iter().map(|t| (t.0.to_owned(), t.1)));
    all.push(("SUBGROUPS".to_owned(), subgroups));
    all
}

/// The text of every variant.
#[must_use]
pub fn modules() -> Vec<Module> {
    let variants = variants();
    let mut modules = Vec::new();
    for (subgroups, fours) in [(0, false), (0, true), (1, true)] {
        let base = base(subgroups);
        for (file, own) in &variants {
            let has_fours = own.iter().any(|c| c.0 == "WORK_VEC4");
            let cooperative = is_cooperative(file);
            if (cooperative && subgroups == 0) || (!fours && !has_fours) {
                continue;
            }
            let own: Vec<_> = own
                .iter()
                .filter(|c| fours || c.0 != "WORK_VEC4")
                .copied()
                .collect();
            let mut all = base.clone();
            all.extend(own.iter().map(|c| (c.0.to_owned(), c.1)));
            let format = own.iter().find(|c| c.0 == "FORMAT");
            let format = format.and_then(|c| DType::from_ggml(c.1));
            let said = own.iter().filter(|c| c.0 != "FORMAT");
            let said = said.map(|c| format!(" {}={}", c.0, c.1));
            let sub = format!("SUBGROUPS={subgroups}");
            modules.push(Module {
                name: format.map_or((*file).to_owned(), |f| format!("{file} {f}")),
                variant: std::iter::once(sub).chain(said).collect(),
                text: text(file, &all),
                subgroups: subgroups == 1,
                cooperative,
            });
        }
    }
    modules
}

/// Files with their constants, but for those of all modules.
pub(crate) fn variants() -> Vec<Variant> {
    let mut all: Vec<Variant> = vec![
        ("step.wgsl", vec![]),
        ("touch.wgsl", vec![("ATOMIC_WORK", 1)]),
    ];
    for file in ["sample.wgsl", "experts.wgsl", "recurrent.wgsl"] {
        all.push((file, vec![]));
    }
    for threads in (1..=8).map(|warps| warps * 32) {
        all.push(("rows.wgsl", vec![("THREADS", threads)]));
    }
    for (threads, dim, fours) in [(128, 64, 1), (128, 30, 0), (256, 1, 0)] {
        let own = vec![("THREADS", threads), ("DIM_K", dim), ("FOURS", fours)];
        all.push(("attention.wgsl", own));
    }
    for (dim, group) in [
        (256, 4),
        (128, 4),
        (128, 1),
        (64, 4),
        (64, 1),
        (80, 2),
        (20, 2),
        (4, 1),
    ] {
        for heads in (0..2).filter(|h| *h == 0 || dim <= 128) {
            for extras in [false, true] {
                let own = own_of_replies(cached_as(dim), (dim, dim), group, extras, heads == 1);
                for replies in (0..2).filter(|r| r + heads < 2) {
                    let more = [("REPLIES", replies)];
                    all.push(("attend.wgsl", [&own[..], &more].concat()));
                }
            }
        }
        for extras in [false, true] {
            let own = own_of_prompts(cached_as(dim), (dim, dim), group, extras);
            all.push(("attend_prompts.wgsl", own.into()));
        }
    }
    all.push(("heads.wgsl", vec![("THREADS", 64)]));
    all.push(("halve.wgsl", vec![("THREADS", 256)]));
    for normed in [false, true] {
        let own = several::own_of_integers(normed);
        all.push(("integers.wgsl", own.into()));
    }
    for aligned in [0, 1] {
        let own = [
            ("THREADS", 128),
            ("WORK_VEC4", 1),
            ("WEIGHTS_VEC4", 1),
            ("ALIGNED", aligned),
        ];
        all.push(("adapt.wgsl", own.into()));
    }
    let known = |f: &u32| DType::from_ggml(*f).is_some_and(|d| formats::packed(d).is_some());
    for format in (0..64).filter(known) {
        of_format(format, &mut all);
    }
    all
}

/// One more than the type of a cache, another one for each of some heads; 0: any.
fn cached_as(dim: u32) -> u32 {
    match dim {
        256 => DType::BF16.ggml() + 1,
        80 => DType::Q8_0.ggml() + 1,
        64 => DType::F32.ggml() + 1,
        4 => 0,
        _ => DType::F16.ggml() + 1,
    }
}

fn of_format(format: u32, all: &mut Vec<Variant>) {
    let of = |own: &[(&'static str, u32)]| [own, &[("FORMAT", format)]].concat();
    all.push((
        "matmul.wgsl",
        of(&[("THREADS", 256), ("WORK_VEC4", 1), ("ROWS", 1)]),
    ));
    let dtype = DType::from_ggml(format);
    let wide = dtype.is_some_and(formats::is_wide);
    let vectors = wide || matches!(dtype, Some(DType::F16 | DType::BF16));
    let groups = Choices::default().several;
    let ways = [(1_u32, 2048, 0, 0), (2, 1024, 1, 0), (4, 1024, 1, 0)].into_iter();
    let dots = [(1, 4096, 0, 1), (2, 2048, 1, 1), (4, 2048, 1, 1)].into_iter();
    for (rows, chunk, halves, dots) in ways.chain(dots.filter(|_| wide)) {
        let kinds = [
            (0, 0, 2),
            (0, 0, 1),
            (0, 1, 2),
            (0, 1, 1),
            (1, 0, 2),
            (1, 1, 2),
        ];
        let kinds = kinds.into_iter().flat_map(|kind| [(kind, 0), (kind, 1)]);
        for ((gated, normed, each), chunked) in kinds {
            let own = [
                ("THREADS", 256),
                ("WORK_VEC4", 1),
                ("VECS_VEC4", 1),
                ("WEIGHTS_VEC4", vectors.into()),
                ("WIDE", wide.into()),
                ("DOTS", dots),
                ("HALVES", halves),
                ("CHUNK", chunk),
                ("CHUNKED", chunked),
                ("EACH", each),
                ("MADE", made(each, gated == 1)),
                ("GATED", gated),
                ("NORMED", normed),
                ("ROWS", rows),
                ("RUNS", runs(rows.trailing_zeros(), vectors && !wide)),
                (
                    "MOST_GROUPS",
                    if rows == 1 || chunked == 1 {
                        NONE
                    } else {
                        groups
                    },
                ),
            ];
            all.push(("products.wgsl", of(&own)));
        }
    }
    for by in (1..=several::MOST).filter(|_| wide) {
        for (gated, halves) in [(false, false), (true, false), (false, true), (true, true)] {
            let own = several::own_of_several(by, gated, halves);
            all.push(("several.wgsl", of(&own)));
        }
    }
    for aligned in [0, 1] {
        let tiles = [("WORK_VEC4", 1), ("ALIGNED", aligned), ("KIND", 1)];
        all.push(("tiles.wgsl", of(&tiles)));
        all.push(("tiles_routed.wgsl", of(&tiles)));
        for (rows, replies) in [(1, 0), (1, 1), (2, 1), (4, 1), (8, 1)] {
            let own = [
                ("THREADS", 256),
                ("WORK_VEC4", 1),
                ("ALIGNED", aligned),
                ("REPLIES", replies),
                ("ROWS", rows),
            ];
            all.push(("matmul.wgsl", of(&own)));
        }
    }
    let how = DType::from_ggml(format).and_then(how_halved);
    for tile in Matrices::KNOWN.into_iter().flat_map(halved_tiles) {
        let own = how.map(|how| of(&[&tile[..], &how].concat()));
        all.extend(own.map(|own| ("tiles_coop.wgsl", own)));
    }
}
