//! Tapes: items that one launch does for steps of one row, in place of theirs.

mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tokkata_ir::{AttentionOp, BackendError, Lead, Op, ValueId};

use super::{Lowering, THREADS, threads_for};
use crate::driver::{Function, Mode};
use crate::error::lost;
use crate::launch::{Extent, Kernel};
use crate::layout::lead_code;
use crate::params::Params;
use crate::select::{self, Form, Item};

use words::Words;
pub(super) use words::{Attention, Piece};

/// As in `tape.cu` and `stream.cuh`: warps of a block, pieces of each, instructions in shared memory, bytes of one behind
/// its first four words, and bytes that the kernel has beside.
const WARPS: u32 = 16;
const DEPTH: u32 = 4;
const AHEAD: u32 = 8;
const BODY: usize = 624;
const BESIDE: u32 = 1024;
/// Groups of four warps that attend.
const GROUPS: u32 = WARPS / 4;
/// Least bytes of a piece: what the lanes of a warp take of the widest format at a time.
const PIECE: u32 = 1696;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Products,
    /// Of heads of so many columns, so many together.
    Attend(u32, u32),
    Copy,
}

/// An instruction of a tape.
#[derive(Clone, Debug)]
struct Instr {
    kind: Kind,
    lead: Lead,
    /// What the kernel gets besides the step.
    body: Vec<u8>,
    /// Shared memory for a row or for attention.
    space: u32,
    /// What stands for it where numbers go from block to block in words.
    words: Option<Words>,
}

/// An item's launches, what stands for them, and the nodes that it does.
type Place = (Range<usize>, Option<Vec<Instr>>, Vec<usize>);

/// Items that stand together: launches, instructions, nodes.
type Stretch = (Range<usize>, Vec<Instr>, Vec<usize>);

/// Items of a plan on their way to tapes.
#[derive(Debug, Default)]
pub(super) struct Tape {
    /// Values that products make of what a norm reads, or of the floats: nothing is prepared.
    sources: BTreeMap<ValueId, Option<usize>>,
    /// Norms of such values whose products read floats.
    norms: BTreeSet<usize>,
    /// What stands for the item under way; `None` where it stays a launch.
    instrs: Option<Vec<Instr>>,
    /// Whether the item before is heads.
    heads: bool,
    /// Every item.
    items: Vec<Place>,
    /// Positions from which on caches are deep for the tapes that were made.
    near: Option<u32>,
}

impl Tape {
    pub(super) fn near(&self) -> u32 {
        self.near.unwrap_or(u32::MAX)
    }
}

impl Lowering<'_, '_> {
    /// Room of a block for rows and attention, where pieces are no smaller than they must be.
    fn most_space(&self) -> u32 {
        let taken = AHEAD * (BODY as u32 + 16) + BESIDE + WARPS * DEPTH * PIECE;
        self.ground.tape_space.saturating_sub(taken)
    }

    /// The form of a row of so many columns and its bytes; `None` where a launch of products cannot be an instruction.
    fn row_space(&self, nodes: &[usize]) -> Option<(Form, u32)> {
        let k = self.width(self.plan.nodes[nodes[0]].ins[0]);
        if self.is_wide(nodes) {
            return None;
        }
        let mut forms = BTreeSet::new();
        for &n in nodes {
            let Op::Matmul { weight, .. } = self.plan.nodes[n].op else {
                return None;
            };
            let segment = &self.ground.weights.place(weight).segments[0];
            let fits =
                segment.row_bytes.is_multiple_of(16) && segment.scale_bytes.is_multiple_of(4);
            if !fits {
                return None;
            }
            forms.insert(Form::of(segment.dtype));
        }
        let form = *forms.first()?;
        let space = form.space(k);
        (forms.len() == 1 && space <= self.most_space()).then_some((form, space))
    }

    /// Finds what products on a tape make for themselves.
    pub(super) fn tape_sources(&mut self, items: &[Item]) {
        if self.ground.tape_space == 0 {
            return;
        }
        let mut sources = select::sources(self.plan, items);
        let mut floats: BTreeMap<ValueId, usize> = BTreeMap::new();
        for item in items {
            let Item::Products { nodes, .. } = item else {
                continue;
            };
            let x = self.plan.nodes[nodes[0]].ins[0];
            match self.row_space(nodes) {
                Some((Form::Bytes, _)) => {}
                Some(_) => {
                    let merged = nodes.iter().filter(|&&n| self.plan.nodes[n].ins[0] == x);
                    *floats.entry(x).or_default() += merged.count();
                }
                None => {
                    sources.remove(&x);
                }
            }
        }
        for item in items {
            let &Item::Node(n) = item else {
                continue;
            };
            let node = &self.plan.nodes[n];
            let Op::Norm {
                width, bias: None, ..
            } = node.op
            else {
                continue;
            };
            let y = node.outs[0];
            let whole = self.width(y) == width && threads_for(width) == THREADS;
            let readers: usize = self
                .plan
                .nodes
                .iter()
                .map(|n| n.ins.iter().filter(|&&v| v == y).count())
                .sum();
            let seen = self.plan.outputs.iter().any(|p| p.value == y);
            if whole && !seen && readers > 0 && floats.get(&y) == Some(&readers) {
                self.tape.norms.insert(n);
                sources.insert(y, Some(n));
            }
        }
        self.tape.sources = sources;
    }

    /// Products as an instruction; `total` outputs, whose `params` begin with the step.
    pub(super) fn tape_products(
        &mut self,
        nodes: &[usize],
        total: u32,
        params: &Params,
        pieces: Vec<Piece>,
        (gate, add): (Option<u32>, Option<ValueId>),
    ) {
        let x = self.plan.nodes[nodes[0]].ins[0];
        let Some((form, space)) = self.row_space(nodes).filter(|_| self.ground.tape_space > 0)
        else {
            return;
        };
        let norm = self.tape.sources.get(&x).copied();
        if form == Form::Bytes && norm.is_none() {
            return;
        }
        // A row in no bytes that nothing makes is read as it is.
        let own = self.norm_of(norm.flatten(), x);
        let source = self.source(&own, Some(form), total);
        let lead = self.lead(self.plan.nodes[nodes[0]].outs[0]);
        let words = Words::Products(words::Products {
            pieces,
            from: own.from,
            add,
            weight: self.maybe(own.weight),
            bias: self.maybe(own.bias),
            total: if gate.is_some() { total / 2 } else { total },
            k: self.width(x),
            gate,
            norm: (own.kind, own.eps),
            form,
        });
        let params = params.clone().then(&source);
        self.put(Kind::Products, lead, &params, space, words);
    }

    /// Attention with its heads as an instruction; `params` are those of its launch.
    pub(super) fn tape_attention(
        &mut self,
        op: &AttentionOp,
        together: u32,
        params: &Params,
        words: Attention,
    ) -> Result<(), BackendError> {
        let (dim, together) = (op.dim_k, together.min(4));
        let group = (together * (dim * 20 + 544) + dim * 4 + 4).next_multiple_of(16);
        let space = group * GROUPS;
        if space > self.most_space() {
            return Ok(());
        }
        // Its last word counts arrivals: more heads together have fewer.
        let arrived = self.scratch(u64::from(op.n_heads) * 4)?;
        let bytes = params.bytes();
        let own = Params::beginning(&bytes[..bytes.len() - 8]).u64(arrived);
        let (kind, words) = (Kind::Attend(dim, together), Words::Attend(words));
        self.put(kind, Lead::Rows, &own, space, words);
        Ok(())
    }

    fn put(&mut self, kind: Kind, lead: Lead, params: &Params, space: u32, words: Words) {
        let body = params.bytes()[self.step().bytes().len()..].to_vec();
        assert!(body.len() <= BODY, "bytes of an instruction");
        let instr = Instr {
            kind,
            lead,
            body,
            space,
            words: Some(words),
        };
        self.tape.instrs.get_or_insert_default().push(instr);
    }

    /// What stands for an item whose launches begin at `before`.
    pub(super) fn tape_item(&mut self, item: &Item, before: usize) {
        let made = self.tape.instrs.take();
        let instrs = match item {
            Item::Prepare { x, .. } if self.tape.sources.contains_key(x) => Some(Vec::new()),
            Item::Node(n) if self.tape.norms.contains(n) => Some(Vec::new()),
            // Attention that comes next does them, where that is an instruction.
            Item::Heads(_) => Some(Vec::new()),
            Item::Node(n) if matches!(self.plan.nodes[*n].op, Op::SelectRows) => {
                let node = &self.plan.nodes[*n];
                let (x, y) = (node.ins[0], node.outs[0]);
                let params = self.step().u64s(&[self.at(x), self.at(y)]);
                let params = params.u32(self.width(y));
                self.put(Kind::Copy, self.lead(y), &params, 0, Words::Copy(x, y));
                self.tape.instrs.take()
            }
            _ => made,
        };
        let range = before..self.launches.len();
        if let Some((_, heads, _)) = self.tape.items.last_mut() {
            let attends =
                matches!(instrs.as_deref(), Some([one]) if matches!(one.kind, Kind::Attend(..)));
            if self.tape.heads && !attends {
                *heads = None;
            }
        }
        self.tape.heads = matches!(item, Item::Heads(_));
        self.tape.items.push((range, instrs, words::nodes_of(item)));
    }

    /// Puts tapes in front of the launches that they stand for.
    pub(super) fn wind_tapes(&mut self) -> Result<(), BackendError> {
        if self.tape.heads
            && let Some((_, heads, _)) = self.tape.items.last_mut()
        {
            *heads = None;
        }
        let runs = runs(std::mem::take(&mut self.tape.items));
        let mut rest = std::mem::take(&mut self.launches);
        let mut at = 0;
        for (range, instrs, nodes) in runs {
            let mut own = rest.split_off(range.start - at);
            self.launches.append(&mut rest);
            rest = own.split_off(range.len());
            at = range.end;
            if !self.wind_words(&instrs, &nodes)? {
                self.wind(&instrs)?;
            }
            for launch in &mut own {
                launch.taped = Some(false);
            }
            self.launches.append(&mut own);
        }
        self.launches.append(&mut rest);
        Ok(())
    }

    /// One tape.
    fn wind(&mut self, instrs: &[Instr]) -> Result<(), BackendError> {
        let space = instrs.iter().map(|i| i.space).max().unwrap_or(0);
        let space = space.next_multiple_of(128);
        let taken = AHEAD * (BODY as u32 + 16) + BESIDE + space;
        let piece = (self.ground.tape_space - taken) / (WARPS * DEPTH) / 16 * 16;
        let mut bytes = Vec::new();
        for (i, instr) in instrs.iter().enumerate() {
            let meets = instrs
                .get(i + 1)
                .is_some_and(|next| (instr.kind, next.kind) != (Kind::Copy, Kind::Copy));
            let kind = match instr.kind {
                Kind::Products => 0,
                Kind::Attend(..) => 1,
                Kind::Copy => 2,
            };
            let head = Params::new().u32s(&[kind, lead_code(instr.lead), meets.into(), 0]);
            bytes.extend(head.bytes());
            bytes.extend(&instr.body);
            bytes.resize((i + 1) * (BODY + 16), 0);
        }
        let (at, meeting) = (self.upload_anew(&bytes)?, self.scratch(8)?);
        let (dim, together) = shape_of(instrs).unwrap_or((64, 1));
        let name = format!("tape_{dim}_{together}");
        let function = self.ground.kernels.function("tape", &name).map_err(lost)?;
        let shared = AHEAD * (BODY as u32 + 16) + space + WARPS * DEPTH * piece;
        // Tapes of other sizes share the kernel.
        let most = self.ground.tape_space - BESIDE;
        function.allow_shared(most).map_err(lost)?;
        let params = self.step().u64s(&[at, meeting]);
        let params = params.u32s(&[instrs.len() as u32, piece, space, 0]);
        let grid = [
            Extent::fixed(self.ground.processors),
            Extent::ONE,
            Extent::ONE,
        ];
        self.push_tape(function, grid, (WARPS * 32, shared), &params);
        Ok(())
    }

    fn push_tape(
        &mut self,
        function: Function,
        grid: [Extent; 3],
        shape: (u32, u32),
        params: &Params,
    ) {
        self.mode = Mode::Together(self.step().bytes().len());
        self.push(Kernel::One(function), grid, shape, params);
        self.mode = Mode::Plain;
        if let Some(tape) = self.launches.last_mut() {
            tape.taped = Some(true);
        }
    }
}

/// Columns of heads and heads together where instructions attend.
fn shape_of(instrs: &[Instr]) -> Option<(u32, u32)> {
    instrs.iter().find_map(|i| match i.kind {
        Kind::Attend(dim, together) => Some((dim, together)),
        _ => None,
    })
}

/// Items that stand together on a tape: their launches, and what stands for these.
fn runs(items: Vec<Place>) -> Vec<Stretch> {
    let mut runs: Vec<Stretch> = Vec::new();
    let mut open = false;
    for (range, own, does) in items {
        let Some(own) = own else {
            open = false;
            continue;
        };
        match runs.last_mut().filter(|_| open) {
            Some((launches, instrs, nodes)) if fits(instrs, &own) => {
                launches.end = range.end;
                instrs.extend(own);
                nodes.extend(does);
            }
            _ => runs.push((range, own, does)),
        }
        open = true;
    }
    runs.retain(|(_, instrs, _)| instrs.iter().any(|i| i.kind != Kind::Copy));
    runs
}

/// Whether one kernel attends for both.
fn fits(before: &[Instr], own: &[Instr]) -> bool {
    let shapes = [before, own].map(shape_of);
    shapes[0].is_none() || shapes[1].is_none() || shapes[0] == shapes[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instr(kind: Kind) -> Instr {
        Instr {
            kind,
            lead: Lead::Rows,
            body: Vec::new(),
            space: 0,
            words: None,
        }
    }

    #[test]
    fn neighbours_that_have_instructions_stand_together() {
        let products = || Some(vec![instr(Kind::Products)]);
        let attend = |dim| Some(vec![instr(Kind::Attend(dim, 1))]);
        let items = vec![
            (0..1, None),
            (1..2, Some(Vec::new())),
            (2..4, products()),
            (4..5, attend(64)),
            (5..6, None),
            (6..7, Some(vec![instr(Kind::Copy)])),
            (7..7, None),
            (7..9, attend(64)),
            (9..10, products()),
            (10..11, attend(128)),
        ];
        let numbered = items.into_iter().enumerate();
        let items = numbered.map(|(i, (range, own))| (range, own, vec![i]));
        let found: Vec<_> = runs(items.collect())
            .into_iter()
            .map(|(range, own, nodes)| (range, own.len(), nodes))
            .collect();
        let expected = [
            (1..5, 2, vec![1, 2, 3]),
            (7..10, 2, vec![7, 8]),
            (10..11, 1, vec![9]),
        ];
        assert_eq!(found, expected);
    }
}
