//! Which columns of cached keys hold positions, and how they are turned to other ones.
//!
//! Rotary embedding turns pairs of columns by an angle for each position. Keys are kept turned, so positions that move
//! by `d` need each pair turned back by `d` times its angle. What a plan does to keys before it stores them says which
//! pairs those are; norms and products behind a rotation cannot be undone, and such a model's context cannot move.

use tokkata_ir::{
    CacheKind, ConstData, GatherIndex, Op, Pairing, Plan, PlanRole, Program, RopeOp, SlotDef,
    ValueId,
};

/// Two columns of a key that hold one angle.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    columns: [usize; 2],
    /// Angle of a position.
    freq: f32,
}

/// The pairs of each slot of each group.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    groups: Vec<Vec<Slot>>,
}

/// One layer's keys and values in a block.
#[derive(Clone, Debug)]
struct Slot {
    /// Columns of a position's keys, and of keys and values.
    widths: [usize; 2],
    pairs: Vec<Pair>,
}

/// Why a model's positions cannot move.
type Fixed = &'static str;

impl Turns {
    /// How the keys of a program's main plan are turned.
    pub(crate) fn of(program: &Program) -> Result<Self, Fixed> {
        let (_, plan) = program.plan(PlanRole::Main).ok_or("it does not write")?;
        let fixed = |op: &Op| {
            let Op::Gather { index, .. } = op else {
                return false;
            };
            matches!(index, GatherIndex::Position { .. })
        };
        if plan.nodes.iter().any(|node| fixed(&node.op)) {
            return Err("its positions are learned");
        }
        if program
            .caches
            .iter()
            .any(|g| matches!(g.kind, CacheKind::Entries(_)))
        {
            return Err("it keeps summaries of several positions");
        }
        let slot = |def: &SlotDef| {
            let widths = match *def {
                SlotDef::Kv {
                    n_kv_heads,
                    dim_k,
                    dim_v,
                } => {
                    let keys = (n_kv_heads * dim_k) as usize;
                    [keys, keys + (n_kv_heads * dim_v.unwrap_or(0)) as usize]
                }
                SlotDef::State { .. } => [0, 0],
            };
            Slot {
                widths,
                pairs: Vec::new(),
            }
        };
        let groups = program.caches.iter();
        let mut groups: Vec<Vec<Slot>> =
            groups.map(|g| g.slots.iter().map(slot).collect()).collect();
        for node in &plan.nodes {
            if let Op::CacheWrite { slot } = node.op {
                let pairs = Walk { program, plan }.pairs(node.ins[0])?;
                groups[slot.group.index()][slot.slot as usize].pairs = pairs;
            }
        }
        Ok(Turns { groups })
    }

    /// Whether blocks of a group hold positions at all.
    pub(crate) fn touches(&self, group: usize) -> bool {
        self.groups[group].iter().any(|slot| !slot.pairs.is_empty())
    }

    /// Moves every key of a block, in canonical form, `back` positions back.
    pub(crate) fn turn(&self, group: usize, block: &mut [f32], back: usize) {
        let slots = &self.groups[group];
        let row: usize = slots.iter().map(|slot| slot.widths[1]).sum();
        let positions = block.len() / row.max(1);
        let mut rest = block;
        for slot in slots {
            let [keys, all] = slot.widths;
            let (own, later) = rest.split_at_mut(positions * all);
            let turns: Vec<(Pair, [f32; 2])> = slot
                .pairs
                .iter()
                .map(|pair| {
                    let angle = back as f64 * f64::from(pair.freq);
                    (*pair, [angle.cos() as f32, angle.sin() as f32])
                })
                .collect();
            for row in own[..positions * keys].chunks_exact_mut(keys.max(1)) {
                for (pair, [cos, sin]) in &turns {
                    let [a, b] = pair.columns;
                    (row[a], row[b]) = (row[a] * cos + row[b] * sin, row[b] * cos - row[a] * sin);
                }
            }
            rest = later;
        }
    }
}

/// A plan that is walked from its keys back to where they were turned.
#[derive(Clone, Copy)]
struct Walk<'a> {
    program: &'a Program,
    plan: &'a Plan,
}

impl Walk<'_> {
    fn width(&self, value: ValueId) -> usize {
        self.plan.value(value).shape.width()
    }

    /// The pairs of columns of a value that hold positions.
    fn pairs(&self, value: ValueId) -> Result<Vec<Pair>, Fixed> {
        let Some(node) = self.plan.nodes.iter().find(|n| n.outs.contains(&value)) else {
            return Ok(Vec::new());
        };
        match &node.op {
            Op::Rope(op) => {
                let before = self.pairs(node.ins[0])?;
                let plain = before.is_empty() && !op.inverse && op.back == 0;
                match plain {
                    true => Ok(self.turned(op, self.width(value))),
                    false => Err("its keys are turned in more than one way"),
                }
            }
            Op::Concat { groups } => self.joined(value, &node.ins, *groups as usize),
            Op::Repeat {
                width,
                times,
                tiled,
            } => self.repeated(node.ins[0], *width as usize, *times as usize, *tiled),
            Op::Slice { group, start, len } => {
                let (group, start, len) = (*group as usize, *start as usize, *len as usize);
                let inside = |column: usize| {
                    let at = (column % group).checked_sub(start).filter(|&at| at < len)?;
                    Some(column / group * len + at)
                };
                let mut cut = Vec::new();
                for pair in self.pairs(node.ins[0])? {
                    match pair.columns.map(inside) {
                        [Some(a), Some(b)] => cut.push(Pair {
                            columns: [a, b],
                            ..pair
                        }),
                        [None, None] => {}
                        _ => return Err("half of a turned pair is kept"),
                    }
                }
                Ok(cut)
            }
            Op::Affine { offset, .. } if *offset == 0.0 => self.pairs(node.ins[0]),
            Op::Copy | Op::SelectRows => self.pairs(node.ins[0]),
            Op::Norm { .. }
            | Op::PerRun { .. }
            | Op::Weighted { .. }
            | Op::Binary { .. }
            | Op::Clamp { .. }
            | Op::Unary(_)
            | Op::PosScale { .. } => {
                let before = node.ins.iter().map(|&v| self.pairs(v));
                let before: Vec<Vec<Pair>> = before.collect::<Result<_, _>>()?;
                match before.iter().all(Vec::is_empty) && !matches!(node.op, Op::PosScale { .. }) {
                    true => Ok(Vec::new()),
                    false => Err("its keys are changed after they are turned"),
                }
            }
            _ => Ok(Vec::new()),
        }
    }

    fn turned(&self, op: &RopeOp, width: usize) -> Vec<Pair> {
        let freqs = self.program.constant(op.freqs).f32s();
        let channels = op
            .channels
            .map(|id| self.program.constant(id))
            .map(ConstData::u32s);
        let head = op.head_dim as usize;
        let pair = |(i, &freq): (usize, &f32)| {
            // Nothing but text moves, and text has no place in the last channel.
            let moves = channels.is_none_or(|c| c[i] < 3);
            let columns = match op.pairing {
                Pairing::Adjacent => [2 * i, 2 * i + 1],
                Pairing::Halves => [i, i + freqs.len()],
            };
            moves.then(|| Pair {
                columns: columns.map(|c| c + op.offset as usize),
                freq,
            })
        };
        let own: Vec<Pair> = freqs.iter().enumerate().filter_map(pair).collect();
        let at = |first: usize| {
            own.iter().map(move |pair| Pair {
                columns: pair.columns.map(|c| c + first),
                ..*pair
            })
        };
        (0..width).step_by(head).flat_map(at).collect()
    }

    /// Inputs side by side in each of `groups` runs of a value; an input of one run is in each of them.
    fn joined(&self, value: ValueId, ins: &[ValueId], groups: usize) -> Result<Vec<Pair>, Fixed> {
        let mut parts = Vec::new();
        for &value in ins {
            parts.push((self.width(value), self.pairs(value)?));
        }
        let run = self.width(value) / groups;
        let widths = runs(&parts.iter().map(|p| p.0).collect::<Vec<_>>(), groups, run);
        let widths = widths.ok_or("its keys are joined in an unknown way")?;
        let (mut joined, mut first) = (Vec::new(), 0);
        for ((width, pairs), own) in parts.into_iter().zip(widths) {
            let repeats = if own == width { groups } else { 1 };
            for pair in pairs {
                joined.extend((0..repeats).map(|again| {
                    Pair {
                        columns: pair
                            .columns
                            .map(|c| (c / own + again) * run + first + c % own),
                        ..pair
                    }
                }));
            }
            first += own;
        }
        Ok(joined)
    }

    /// A value whose runs of `width` columns are repeated.
    fn repeated(
        &self,
        value: ValueId,
        width: usize,
        times: usize,
        tiled: bool,
    ) -> Result<Vec<Pair>, Fixed> {
        let (all, pairs) = (self.width(value), self.pairs(value)?);
        let (run, between) = if tiled { (all, all) } else { (width, width) };
        let at = |column: usize, again: usize| {
            column / run * run * times + again * between + column % run
        };
        let copies = |pair: Pair| {
            (0..times).map(move |again| Pair {
                columns: pair.columns.map(|c| at(c, again)),
                ..pair
            })
        };
        Ok(pairs.into_iter().flat_map(copies).collect())
    }
}

/// Columns that each input has in a run of the output: a part of its own, or the whole of it in every run.
fn runs(widths: &[usize], groups: usize, run: usize) -> Option<Vec<usize>> {
    (0..1_u32 << widths.len()).find_map(|whole| {
        let own = |(i, &width): (usize, &usize)| match whole >> i & 1 {
            0 => width / groups,
            _ => width,
        };
        let own: Vec<usize> = widths.iter().enumerate().map(own).collect();
        (own.iter().sum::<usize>() == run).then_some(own)
    })
}
