//! Tapes of 9.0: what their instructions are told, and where the words lie that blocks hand numbers on in.

use std::collections::{BTreeMap, BTreeSet};

use tokkata_core::DType;
use tokkata_ir::{BackendError, ValueId};

use super::{Instr, Lowering};
use crate::error::lost;
use crate::launch::Extent;
use crate::layout::lead_code;
use crate::lower::flash::SPLIT;
use crate::params::Params;
use crate::select::{Form, Item};
use crate::weights::Segment;

/// As in `tape_parts.cuh`: bytes of an instruction behind its first four words, bytes in front of the rows, places for weights,
/// columns of a row that is normalised, weights of an instruction, threads (those of four warps beside the sixteen that
/// compute: one fetches, the others give their registers away).
const BODY: usize = 368;
const FRONT: u32 = 7680;
const MOST_SLOTS: u32 = 16;
const MOST_NORM: u32 = 4096;
const PARTS: usize = 4;
const THREADS: u32 = 20 * 32;
/// Most bytes of a slot, unless a row is longer, and what it has beside rows: scales begin and end inside of 16 bytes.
const SLOT: u32 = 32 << 10;
const BESIDE: u32 = 64;
/// Least slots: one is read while another is filled.
const LEAST_SLOTS: u32 = 3;
/// Most bytes of a row in parts: with longer ones weights have so little room that meeting is faster (8B, F16: 156 against 176
/// tokens a second).
const MOST_PARTS: u32 = 48 << 10;
/// Times that are noted of an instruction.
const TIMES: usize = 4;
/// As in `tape_tiles.cuh`: rows of a tile, and bytes of what warps hand over at its end.
const TILE: u32 = 16;
const JOINTS: u32 = 8384;

/// One weight of a product.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Piece {
    pub(in crate::lower) segment: Segment,
    /// What its outputs go to: behind a gate or a sum, where there is one.
    pub(in crate::lower) to: ValueId,
    pub(in crate::lower) scale: u64,
    pub(in crate::lower) scale_len: u32,
    pub(in crate::lower) bias: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Products {
    pub(super) pieces: Vec<Piece>,
    pub(super) from: ValueId,
    pub(super) add: Option<ValueId>,
    /// Of the norm.
    pub(super) weight: u64,
    pub(super) bias: u64,
    /// Outputs, or pairs of them where there is a gate.
    pub(super) total: u32,
    pub(super) k: u32,
    /// The activation of a gate.
    pub(super) gate: Option<u32>,
    /// Its kind and epsilon.
    pub(super) norm: (u32, f32),
    pub(super) form: Form,
}

/// Attention with its heads.
#[derive(Clone, Debug)]
pub(in crate::lower) struct Attention {
    pub(in crate::lower) cache: Params,
    /// Queries, keys and values.
    pub(in crate::lower) heads: [ValueId; 3],
    /// Of the norms of queries and keys.
    pub(in crate::lower) weights: [u64; 2],
    pub(in crate::lower) turns: u64,
    pub(in crate::lower) sinks: u64,
    pub(in crate::lower) to: ValueId,
    /// Bytes that splits leave.
    pub(in crate::lower) partial: u64,
    /// What follows the addresses.
    pub(in crate::lower) numbers: Params,
}

/// What stands for an instruction.
#[derive(Clone, Debug)]
pub(super) enum Words {
    Products(Products),
    Attend(Attention),
    Copy(ValueId, ValueId),
}

/// Nodes that an item does.
pub(super) fn nodes_of(item: &Item) -> Vec<usize> {
    match item {
        Item::Node(n) => vec![*n],
        Item::Prepare { norm, .. } => norm.iter().copied().collect(),
        Item::Heads(h) => {
            let own = [Some(h.rope_q), Some(h.rope_k), h.norm_q, h.norm_k];
            own.into_iter().flatten().chain([h.write]).collect()
        }
        Item::Adapts(nodes) => nodes.clone(),
        Item::Products {
            nodes, gate, add, ..
        } => {
            let behind = gate.iter().copied().chain(add.map(|a| a.0));
            nodes.iter().copied().chain(behind).collect()
        }
    }
}

impl Products {
    /// Bytes of what a block takes at a time, without those that scales begin and end inside of.
    fn unit(&self) -> u32 {
        let bytes = |p: &Piece| (p.segment.row_bytes + p.segment.scale_bytes) as u32;
        match self.gate {
            Some(_) => self.pieces.iter().map(bytes).sum(),
            None => self.pieces.iter().map(bytes).max().unwrap_or(0),
        }
    }

    /// Shared memory of its row.
    fn space(&self) -> u32 {
        self.form.space(self.k)
    }

    /// Whether tiles of rows know it: all formats that they are in, and whole stretches of columns.
    fn goes_by_tiles(&self) -> bool {
        let known = |p: &Piece| chunk(p.segment.dtype).is_some();
        let alike = self.gate.is_none() || {
            let mut dtypes = self.pieces.iter().map(|p| p.segment.dtype);
            let first = dtypes.next();
            dtypes.all(|d| Some(d) == first)
        };
        self.k.is_multiple_of(256) && alike && self.pieces.iter().all(known)
    }

    /// Most bytes of a place that holds columns of a tile.
    fn place(&self) -> u32 {
        let of = |p: &Piece| {
            let (row, beside) = chunk(p.segment.dtype).unwrap_or_default();
            let scales = match p.segment.dtype {
                DType::Q6_K => TILE * p.segment.scale_bytes as u32 + 64,
                _ => 0,
            };
            TILE * (row + beside) + scales
        };
        self.pieces.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes of its weights.
    fn bytes(&self) -> u64 {
        let of =
            |p: &Piece| u64::from(p.segment.rows) * (p.segment.row_bytes + p.segment.scale_bytes);
        self.pieces.iter().map(of).sum()
    }
}

/// Bytes of a row's columns in a place, and what it has beside them; `None` for formats that no tile is in.
fn chunk(dtype: DType) -> Option<(u32, u32)> {
    match dtype {
        DType::Q4_K => Some((16 * 144, 16)),
        DType::Q5_K => Some((8 * 176, 16)),
        DType::Q6_K => Some((8 * 208, 16)),
        DType::Q8_0 => Some((2048, 16 + 144)),
        DType::F16 | DType::BF16 => Some((2048, 64)),
        _ => None,
    }
}

/// Shared memory of attention, of heads of so many columns and so many together.
fn near_space(dim: u32, together: u32) -> u32 {
    together * (24 * dim + 2592) + 12 * dim
}

/// The same where blocks take many splits each.
fn deep_space(dim: u32, together: u32) -> u32 {
    let at_once = (together * dim / 64).max(2);
    together * (4 * dim + 2112) + 4 * dim + 512 + at_once * 2176
}

/// How shared memory is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    space: u32,
    spaces: u32,
    slot: u32,
    slots: u32,
    /// Whether products go by tiles, through one slot that is a ring of bytes.
    tiled: bool,
}

/// A tape on the device: its instructions, what it leaves for the next step, times; so many instructions; from one set of
/// words to the other.
#[derive(Clone, Copy, Debug)]
struct Wound {
    at: u64,
    state: u64,
    watch: u64,
    count: u32,
    apart: u32,
}

/// Cuts `all` bytes for products of such units (bytes of one, units of a block) and rows of such bytes.
fn cut(all: u32, units: &[(u32, u32)], space: u32) -> Option<Cut> {
    let whole = |&(bytes, count): &(u32, u32)| (bytes * count).next_multiple_of(16);
    let short = units.iter().map(whole).filter(|&b| b <= SLOT).max();
    let long = units.iter().map(whole).any(|b| b > SLOT);
    let least = units.iter().map(|u| u.0).max()?;
    let slot = short.unwrap_or(SLOT).max(if long { SLOT / 2 } else { 0 });
    let slot = (slot.max(least) + BESIDE).next_multiple_of(128);
    let space = space.next_multiple_of(128);
    [2, 1].into_iter().find_map(|spaces| {
        let slots = all.checked_sub(FRONT + spaces * space)? / slot;
        let fits = slots >= LEAST_SLOTS;
        fits.then_some(Cut {
            space,
            spaces,
            slot,
            slots: slots.min(MOST_SLOTS),
            tiled: false,
        })
    })
}

/// Cuts `all` bytes for tiles whose places have at most so many, and one row of such bytes: what a second one would take is
/// better given to the ring.
fn cut_ring(all: u32, place: u32, space: u32) -> Option<Cut> {
    let space = space.next_multiple_of(128);
    let slot = all.checked_sub(FRONT + space + JOINTS)? / 128 * 128;
    // Of either half of the warps a place is read while another is filled.
    (slot >= 3 * place).then_some(Cut {
        space,
        spaces: 1,
        slot,
        slots: 1,
        tiled: true,
    })
}

/// Least bytes that products read, one with another, where tiles are faster.
const LARGE: u64 = 7 << 20;

/// Whether products go by tiles.
fn goes_by_tiles(instrs: &[Instr]) -> bool {
    let words = instrs.iter().filter_map(|i| i.words.as_ref());
    let all: Vec<&Products> = words
        .filter_map(|words| match words {
            Words::Products(p) => Some(p),
            _ => None,
        })
        .collect();
    let bytes: u64 = all.iter().map(|p| p.bytes()).sum();
    let wide = super::shape_of(instrs).is_none_or(|(dim, _)| dim == 128);
    wide && bytes >= LARGE * all.len() as u64 && all.iter().all(|p| p.goes_by_tiles())
}

/// Where values of a tape stand in words: the first word, and the mark of what writes them.
type Places = BTreeMap<ValueId, (u64, u32)>;

impl Lowering<'_, '_> {
    /// A tape whose numbers go from block to block in words; `false` where it must be another.
    pub(super) fn wind_words(
        &mut self,
        instrs: &[Instr],
        nodes: &[usize],
    ) -> Result<bool, BackendError> {
        if !self.ground.words {
            return Ok(false);
        }
        let tiled = goes_by_tiles(instrs);
        let Some(all) = self.alone(instrs, nodes, tiled) else {
            return Ok(false);
        };
        let shape = super::shape_of(instrs);
        let mut units = Vec::new();
        let (mut space, mut place) = (0, 0);
        for (_, words) in &all {
            if let Words::Products(p) = words {
                units.push((p.unit(), p.total.div_ceil(self.ground.processors)));
                (space, place) = (space.max(p.space()), place.max(p.place()));
            }
        }
        let most = self.ground.tape_space;
        let cut = |own: u32| match tiled {
            true => cut_ring(most, place, space.max(own)),
            false => cut(most, &units, space.max(own)),
        };
        let Some((dim, together)) = shape else {
            let Some(cut) = cut(0) else {
                return Ok(false);
            };
            let tape = self.wind_all(&all, nodes, cut.slot)?;
            let name = if tiled { "tape_128_1" } else { "tape_64_1" };
            self.push_words(name, &tape, cut, None)?;
            return Ok(true);
        };
        let near = together.min(2);
        let (Some(own), Some(deep)) = (
            cut(near_space(dim, near)),
            cut(deep_space(dim, together).max(near_space(dim, near))),
        ) else {
            return Ok(false);
        };
        let tape = self.wind_all(&all, nodes, own.slot)?;
        self.push_words(&format!("tape_{dim}_{near}"), &tape, own, Some(false))?;
        let name = format!("deep_tape_{dim}_{together}");
        self.push_words(&name, &tape, deep, Some(true))?;
        // A block for each split of the heads that have most of them.
        let heads = all.iter().filter_map(|(_, w)| match w {
            Words::Attend(a) => Some(self.width(a.to) / dim),
            _ => None,
        });
        let groups = heads.max().unwrap_or(1) / near;
        let most = self.near_blocks() / groups.max(1) * SPLIT;
        self.tape.near = Some(self.tape.near().min(most));
        Ok(true)
    }

    /// Instructions with what stands for them, without copies that nobody behind the tape reads; `None` where one of them
    /// asks for more than these tapes do.
    fn alone<'i>(
        &self,
        instrs: &'i [Instr],
        nodes: &[usize],
        tiled: bool,
    ) -> Option<Vec<(&'i Instr, Words)>> {
        let mut made = BTreeSet::new();
        let mut copied: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let mut all = Vec::new();
        for instr in instrs {
            let mut words = instr.words.clone()?;
            let first = |v: &mut ValueId| *v = copied.get(v).copied().unwrap_or(*v);
            match &mut words {
                Words::Products(p) => {
                    first(&mut p.from);
                    p.add.iter_mut().for_each(first);
                    let long = p.norm.0 != 4 && p.k > MOST_NORM;
                    // Rows are read four words at a time.
                    let mut before_last = p.pieces.iter().rev().skip(1);
                    let ragged = before_last.any(|p| !p.segment.rows.is_multiple_of(4));
                    let ragged = ragged && p.gate.is_none();
                    let large = !tiled && p.form != Form::Bytes && p.space() > MOST_PARTS;
                    if long || ragged || large {
                        return None;
                    }
                    made.extend(p.pieces.iter().map(|p| p.to));
                }
                Words::Attend(a) => {
                    a.heads.iter_mut().for_each(first);
                    made.insert(a.to);
                }
                Words::Copy(x, y) => {
                    first(x);
                    if !made.contains(x) {
                        return None;
                    }
                    copied.insert(*y, *x);
                    if !self.is_read_behind(*y, nodes) {
                        continue;
                    }
                }
            }
            all.push((instr, words));
        }
        Some(all)
    }

    /// Whether others than these nodes read a value.
    fn is_read_behind(&self, value: ValueId, nodes: &[usize]) -> bool {
        let own =
            |(i, n): (usize, &tokkata_ir::Node)| !nodes.contains(&i) && n.ins.contains(&value);
        let output = self.plan.outputs.iter().any(|p| p.value == value);
        output || self.plan.nodes.iter().enumerate().any(own)
    }

    /// Where the values of a tape that its instructions read stand in words, and how many words there are: twice, since those
    /// of the next step are emptied meanwhile.
    fn place_words(&mut self, all: &[(&Instr, Words)]) -> Result<(Places, u32), BackendError> {
        let mut read = BTreeSet::new();
        for (_, words) in all {
            match words {
                Words::Products(p) => read.extend([p.from].into_iter().chain(p.add)),
                Words::Attend(a) => read.extend(a.heads),
                Words::Copy(x, _) => _ = read.insert(*x),
            }
        }
        // Words of an instruction follow each other, whichever of its values are read.
        let (mut places, mut end) = (Places::new(), 0u64);
        for (i, (_, words)) in all.iter().enumerate() {
            let mark = i as u32 + 1;
            let own: Vec<(ValueId, u32)> = match words {
                Words::Products(p) if p.gate.is_some() => vec![(p.pieces[0].to, p.total)],
                Words::Products(p) => p.pieces.iter().map(|p| (p.to, p.segment.rows)).collect(),
                Words::Attend(a) => vec![(a.to, self.width(a.to))],
                Words::Copy(..) => continue,
            };
            if own.iter().any(|(v, _)| read.contains(v)) {
                for (value, count) in own {
                    places.insert(value, (end * 4, mark));
                    end += u64::from(count);
                }
                end = end.next_multiple_of(32);
            }
        }
        let at = self.scratch((2 * end * 4).max(8))?;
        places.values_mut().for_each(|p| p.0 += at);
        Ok((places, u32::try_from(end).expect("words fit 32 bits")))
    }

    /// `Numbers` of `tape90.cu`: words, where an instruction before this one writes them.
    fn numbers(&self, places: &Places, value: ValueId, mark: u32) -> Params {
        let words = places.get(&value).filter(|p| p.1 < mark);
        let at = words.map_or(0, |p| p.0);
        let x = if at == 0 { self.at(value) } else { 0 };
        Params::new().u64s(&[x, at])
    }

    /// A tape's instructions, for slots of such bytes.
    fn wind_all(
        &mut self,
        all: &[(&Instr, Words)],
        nodes: &[usize],
        slot: u32,
    ) -> Result<Wound, BackendError> {
        let (places, apart) = self.place_words(all)?;
        let partial = all.iter().filter_map(|(_, w)| match w {
            Words::Attend(a) => Some(a.partial),
            _ => None,
        });
        // What splits leave for each other: two of them, since blocks may be an instruction apart.
        let partial = partial.max().unwrap_or(0).next_multiple_of(128);
        let splits = self.scratch((2 * partial).max(8))?;
        let mut turn = 0;
        let mut bytes = Vec::new();
        for (i, (instr, words)) in all.iter().enumerate() {
            let mark = i as u32 + 1;
            let behind = |v: ValueId| match self.is_read_behind(v, nodes) {
                true => self.at(v),
                false => 0,
            };
            let at = |v: ValueId| places.get(&v).map_or(0, |p| p.0);
            let (kind, body) = match words {
                Words::Products(p) => {
                    let of = |v| self.numbers(&places, v, mark);
                    (
                        0,
                        p.params(slot, self.ground.processors, of, behind, at(p.pieces[0].to)),
                    )
                }
                Words::Attend(a) => {
                    let mut body = a.cache.clone();
                    for v in a.heads {
                        body = body.then(&self.numbers(&places, v, mark));
                    }
                    turn += 1;
                    let own = splits + turn % 2 * partial;
                    let body = body
                        .u64s(&a.weights)
                        .u64s(&[a.turns, a.sinks, behind(a.to)]);
                    (1, body.u64s(&[at(a.to), own]).then(&a.numbers))
                }
                &Words::Copy(x, y) => {
                    let body = self.numbers(&places, x, mark).u64(self.at(y));
                    (2, body.u32s(&[self.width(y), 0]))
                }
            };
            assert!(body.bytes().len() <= BODY, "bytes of an instruction");
            let head = Params::new().u32s(&[kind, lead_code(instr.lead), 0, 0]);
            bytes.extend(head.bytes());
            bytes.extend(body.bytes());
            bytes.resize((i + 1) * (BODY + 16), 0);
        }
        let (at, state) = (self.upload_anew(&bytes)?, self.scratch(16)?);
        let watch = self.watch(all)?;
        Ok(Wound {
            at,
            state,
            watch,
            count: all.len() as u32,
            apart,
        })
    }

    /// Blocks that splits have at most where each has one.
    fn near_blocks(&self) -> u32 {
        match self.ground.deep {
            true => 0,
            false => self.ground.processors,
        }
    }

    /// A launch of a tape.
    fn push_words(
        &mut self,
        name: &str,
        tape: &Wound,
        cut: Cut,
        deep: Option<bool>,
    ) -> Result<(), BackendError> {
        let kernels = &self.ground.kernels;
        let file = if cut.tiled { "tape_tiles" } else { "tape90" };
        let function = kernels.function(file, name).map_err(lost)?;
        function
            .allow_shared(self.ground.tape_space)
            .map_err(lost)?;
        let beside = if cut.tiled { JOINTS } else { 0 };
        let shared = FRONT + cut.spaces * cut.space + cut.slots * cut.slot + beside;
        let params = self.step().u64s(&[tape.at, tape.state, tape.watch]);
        let params = params.u32s(&[tape.count, cut.slots, cut.slot]);
        let params = params.u32s(&[cut.space, cut.spaces, tape.apart]);
        let params = params.u32s(&[self.near_blocks(), 0]);
        let blocks = Extent::fixed(self.ground.processors);
        let grid = [blocks, Extent::ONE, Extent::ONE];
        self.push_tape(function, grid, (THREADS, shared), &params);
        if let Some(launch) = self.launches.last_mut() {
            launch.deep = deep;
        }
        Ok(())
    }

    /// Where blocks note times, if anyone asks.
    fn watch(&mut self, all: &[(&Instr, Words)]) -> Result<u64, BackendError> {
        if self.ground.watches.is_none() {
            return Ok(0);
        }
        let blocks = self.ground.processors as usize;
        let at = self.scratch((blocks * all.len() * TIMES * 8) as u64)?;
        let name = |(i, w): &(&Instr, Words)| match w {
            Words::Products(p) => {
                let kinds: Vec<String> = p
                    .pieces
                    .iter()
                    .map(|p| p.segment.dtype.to_string())
                    .collect();
                format!("{}x{} {}", p.total, p.k, kinds.join(" "))
            }
            _ => format!("{:?}", i.kind),
        };
        let names = all.iter().map(name).collect();
        self.note_watch(at, blocks, names);
        Ok(at)
    }
}

impl Products {
    /// `Product` of `tape90.cu`.
    fn params(
        &self,
        slot: u32,
        blocks: u32,
        numbers: impl Fn(ValueId) -> Params,
        behind: impl Fn(ValueId) -> u64,
        words: u64,
    ) -> Params {
        let (mut params, mut end) = (Params::new(), 0);
        for piece in &self.pieces {
            let s = &piece.segment;
            let [row, scales] = [s.row_bytes as u32, s.scale_bytes as u32];
            let unit = if self.gate.is_some() {
                self.unit()
            } else {
                row + scales
            };
            end = if self.gate.is_some() {
                self.total
            } else {
                end + s.rows
            };
            params = params.u64s(&[s.data, s.scales, behind(piece.to)]);
            params = params.u64s(&[piece.scale, piece.bias]);
            params = params.u32s(&[row, scales, end, s.dtype.ggml()]);
            params = params.u32s(&[piece.scale_len, (slot - BESIDE) / unit]);
        }
        for _ in self.pieces.len()..PARTS {
            params = params.u64s(&[0; 5]).u32s(&[0, 0, self.total, 0, 1, 1]);
        }
        let none = || Params::new().u64s(&[0; 2]);
        let params = params.then(&numbers(self.from));
        let params = params.then(&self.add.map_or_else(none, &numbers));
        let params = params.u64s(&[self.weight, self.bias, words]);
        let gate = self.gate.map_or([0, 0], |act| [1, act]);
        let params = params.u32s(&[self.total / blocks, self.total % blocks, self.k]);
        let (kind, eps) = self.norm;
        params.u32s(&gate).u32(kind).f32(eps).u32(self.form.code())
    }
}

#[cfg(test)]
mod tests {
    use super::{BESIDE, FRONT, JOINTS, SLOT, cut, cut_ring};

    #[test]
    fn a_slot_holds_what_a_block_does_of_a_short_product() {
        let all = 227 << 10;
        let found = cut(all, &[(576, 32), (1152, 24), (576, 1152)], 12_864).expect("it fits");
        assert_eq!((found.slot, found.slots), (27_776, 7));
        assert_eq!((found.space, found.spaces), (12_928, 2));
        let bytes = FRONT + found.spaces * found.space + found.slots * found.slot;
        assert!(bytes <= all);
    }

    #[test]
    fn a_ring_has_room_for_rows_once_or_twice() {
        let all = 227 << 10;
        let found = cut_ring(all, 37_120, 19_712).expect("it fits");
        assert_eq!((found.space, found.spaces, found.slots), (19_712, 1, 1));
        let bytes = FRONT + found.space + found.slot + JOINTS;
        assert!(all - 128 < bytes && bytes <= all);
        assert!(cut_ring(all, 33_792, 120_000).is_none());
    }

    #[test]
    fn long_rows_have_long_slots_or_no_tape() {
        let all = 227 << 10;
        let found = cut(all, &[(28_672, 32), (8192, 48)], 57_344).expect("it fits");
        assert!(found.slot >= 28_672 + BESIDE && found.slots >= 3 && found.spaces == 2);
        let single = cut(all, &[(40_000, 32)], 57_344).expect("it fits");
        assert_eq!(single.spaces, 1);
        assert!(single.slot > SLOT);
        assert!(cut(all, &[(80_000, 32)], 57_344).is_none());
    }
}
