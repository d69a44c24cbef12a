//! Convolutions, shifts and recurrences over prompt and decode steps. Sequences are stepped together and apart.

use tokkata_core::DType;
use tokkata_ir::{Act, ConstData, Conv1dOp, Op, Scan, SlotId, ValueId};

use super::case::{Case, Rounds};
use super::linear::{matrix, sum_ulps};
use crate::fixture::{Fixture, Rows, noises};

/// Rounding of a state over the rows of a case.
const ULPS: f64 = 12.0;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (width, kernel) in [(1, 1), (7, 4), (64, 3), (100, 2)] {
        cases.push(conv((width, kernel), true));
        cases.push(conv((width, kernel), false));
    }
    for dtype in [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q8_0,
        DType::Q4_0,
    ] {
        cases.push(conv1d(dtype, (32, 17), (3, 1, 1, 1)));
        cases.push(conv1d(dtype, (64, 33), (3, 2, 1, 2)));
    }
    cases.push(conv1d(DType::Q4_K, (256, 5), (3, 2, 1, 4)));
    for taps in [(1, 1, 0, 3), (5, 1, 2, 1), (2, 2, 0, 2), (4, 3, 1, 6)] {
        cases.push(conv1d(DType::F32, (7, 5), taps));
    }
    for width in [1, 7, 64] {
        let shift = stateful(format!("shift/{width}"), width, &[], |_, slot| Op::Shift {
            slot,
        });
        cases.push(Case {
            ulps: None,
            ..shift
        });
    }
    cases.extend([mamba1(5, 3), mamba1(32, 16)]);
    cases.extend([mamba2((4, 6, 2, 5), true), mamba2((2, 16, 1, 16), false)]);
    for (heads, dim) in [(1, 3), (2, 16)] {
        cases.extend([
            wkv6(heads, dim),
            gla(heads, dim),
            wkv7(heads, dim),
            decay(heads, dim),
        ]);
    }
    for tiled in [false, true] {
        cases.push(gated_delta((2, 4), (8, 6), (tiled, false)));
        cases.push(gated_delta((1, 3), (16, 16), (tiled, true)));
    }
    cases
}

/// Channels in and out; taps, stride, padding and frames of a row.
fn conv1d(
    dtype: DType,
    (channels, n): (u32, u32),
    (kernel, stride, padding, frames): (u32, u32, u32, u32),
) -> Case {
    let mut f = Fixture::default();
    let op = Conv1dOp {
        weight: matrix(&mut f, dtype, &[n, kernel * channels]),
        bias: Some(f.vector(&[n], &noises("bias", n as usize))),
        kernel,
        stride,
        padding,
        frames,
    };
    let x = f.input(&[frames, channels]);
    let out = f.op(Op::Conv1d(op), &[x], &[frames / stride, n]);
    let name = format!("conv1d/{dtype}/{channels}x{n}/{kernel}/{stride}/{padding}/{frames}");
    Case::new(name, f, vec![out])
        .ulps(1.0 + sum_ulps(kernel * channels))
        .rounds(Rounds::Matmul(dtype))
        .all_rows(1.0)
        .step(vec![
            Rows::of(3, 0..9),
            Rows::of(1, 0..1),
            Rows::of(2, 0..17),
        ])
}

/// An op with a state whose size is the op's: every input is as given, the output as wide as the first.
fn stateful(
    name: String,
    state: u32,
    widths: &[u32],
    build: impl FnOnce(&mut Fixture, SlotId) -> Op,
) -> Case {
    let mut f = Fixture::default();
    let slot = f.state(state);
    let op = build(&mut f, slot);
    let widths = if widths.is_empty() {
        &[state][..]
    } else {
        widths
    };
    let ins: Vec<ValueId> = widths.iter().map(|&w| f.input(&[w])).collect();
    let out = f.op(op, &ins, &[widths[0]]);
    Case::new(name, f, vec![out])
        .ulps(ULPS)
        .mixed_steps()
        .kept_steps()
}

fn conv((width, kernel): (u32, u32), slotted: bool) -> Case {
    let mut f = Fixture::default();
    let slot = slotted.then(|| f.state((kernel - 1) * width));
    let op = Op::Conv {
        weight: f.vector(&[width, kernel], &noises("taps", (width * kernel) as usize)),
        bias: Some(f.vector(&[width], &noises("bias", width as usize))),
        kernel,
        slot,
    };
    let x = f.input(&[width]);
    let out = f.op(op, &[x], &[width]);
    let name = format!("conv/{width}x{kernel}/slot={slotted}");
    let case = Case::new(name, f, vec![out]).ulps(6.0);
    if slotted {
        case.mixed_steps().kept_steps()
    } else {
        case.all_rows(1.0)
    }
}

/// Negative decays.
fn negative(f: &mut Fixture, shape: &[u32]) -> tokkata_ir::WeightId {
    let len = shape.iter().product::<u32>() as usize;
    let values: Vec<f32> = noises("a", len).iter().map(|x| -1.5 - x).collect();
    f.vector(shape, &values)
}

fn mamba1(width: u32, state: u32) -> Case {
    let name = format!("scan/mamba1/{width}x{state}");
    let widths = [width, width, state, state];
    stateful(name, width * state, &widths, |f, slot| {
        let a = negative(f, &[width, state]);
        let d = f.vector(&[width], &noises("d", width as usize));
        let scan = Scan::Mamba1 { state, a, d };
        Op::Scan { scan, slot }
    })
}

fn mamba2((heads, dim, groups, state): (u32, u32, u32, u32), biased: bool) -> Case {
    let name = format!("scan/mamba2/{heads}x{dim}/{groups}x{state}/biased={biased}");
    let bc = groups * state;
    let widths = [heads * dim, heads, bc, bc];
    stateful(name, heads * dim * state, &widths, |f, slot| {
        let scan = Scan::Mamba2 {
            heads,
            state,
            groups,
            a: negative(f, &[heads]),
            d: f.vector(&[heads], &noises("d", heads as usize)),
            dt_bias: biased.then(|| f.vector(&[heads], &noises("dt", heads as usize))),
        };
        Op::Scan { scan, slot }
    })
}

/// A recurrence with square states; inputs listed in `decays` become decays in 0..1 first.
fn square(
    name: &str,
    (heads, dim): (u32, u32),
    (inputs, decays): (usize, &[usize]),
    build: impl FnOnce(&mut Fixture) -> Scan,
) -> Case {
    let mut f = Fixture::default();
    let width = heads * dim;
    let slot = f.state(width * dim);
    let scan = build(&mut f);
    let input = |f: &mut Fixture, i: usize| {
        let x = f.input(&[width]);
        match decays.contains(&i) {
            true => f.op(Op::Unary(Act::Sigmoid), &[x], &[width]),
            false => x,
        }
    };
    let ins: Vec<ValueId> = (0..inputs).map(|i| input(&mut f, i)).collect();
    let out = f.op(Op::Scan { scan, slot }, &ins, &[width]);
    let case = Case::new(format!("scan/{name}/{heads}x{dim}"), f, vec![out]);
    case.ulps(ULPS).mixed_steps().kept_steps()
}

fn wkv6(heads: u32, head_dim: u32) -> Case {
    let width = heads * head_dim;
    square("wkv6", (heads, head_dim), (4, &[3]), |f| Scan::Wkv6 {
        head_dim,
        first: f.vector(&[width], &noises("first", width as usize)),
    })
}

fn gla(heads: u32, head_dim: u32) -> Case {
    let scale = 0.5;
    square("gla", (heads, head_dim), (4, &[3]), |_| Scan::Gla {
        head_dim,
        scale,
    })
}

/// κ is normalised per head, as the model does it: otherwise the state grows without bound.
fn wkv7(heads: u32, head_dim: u32) -> Case {
    let mut f = Fixture::default();
    let width = heads * head_dim;
    let slot = f.state(width * head_dim);
    let raw: Vec<ValueId> = (0..6).map(|_| f.input(&[width])).collect();
    let sigmoid = |f: &mut Fixture, x| f.op(Op::Unary(Act::Sigmoid), &[x], &[width]);
    let norm = Op::Norm {
        kind: tokkata_ir::NormKind::L2,
        eps: 1e-6,
        width: head_dim,
        weight: None,
        bias: None,
    };
    let decay = sigmoid(&mut f, raw[1]);
    let kappa = f.op(norm, &[raw[4]], &[width]);
    let rate = sigmoid(&mut f, raw[5]);
    let ins = [raw[0], decay, raw[2], raw[3], kappa, rate];
    let scan = Scan::Wkv7 { head_dim };
    let out = f.op(Op::Scan { scan, slot }, &ins, &[width]);
    let case = Case::new(format!("scan/wkv7/{heads}x{head_dim}"), f, vec![out]);
    case.ulps(ULPS).mixed_steps().kept_steps()
}

fn decay(heads: u32, dim: u32) -> Case {
    square("decay", (heads, dim), (3, &[]), |f| {
        let slopes = noises("slopes", heads as usize)
            .iter()
            .map(|x| 0.5 + 0.4 * x)
            .collect();
        let slopes = f.constant(ConstData::F32(slopes));
        Scan::Decay { heads, slopes }
    })
}

/// Keys are normalised, log decays negative and β in 0..1, as models have them.
fn gated_delta(
    (k_heads, v_heads): (u32, u32),
    (dim_k, dim_v): (u32, u32),
    (tiled, per_channel): (bool, bool),
) -> Case {
    let mut f = Fixture::default();
    let slot = f.state(v_heads * dim_k * dim_v);
    let (keys, values) = (k_heads * dim_k, v_heads * dim_v);
    let gates = if per_channel {
        v_heads * dim_k
    } else {
        v_heads
    };
    let raw = [keys, keys, values, gates, v_heads].map(|w| f.input(&[w]));
    let norm = Op::Norm {
        kind: tokkata_ir::NormKind::L2,
        eps: 1e-6,
        width: dim_k,
        weight: None,
        bias: None,
    };
    let k = f.op(norm, &[raw[1]], &[keys]);
    let log_decay = Op::Affine {
        scale: 0.4,
        offset: -0.5,
    };
    let g = f.op(log_decay, &[raw[3]], &[gates]);
    let beta = f.op(Op::Unary(Act::Sigmoid), &[raw[4]], &[v_heads]);
    let scan = Scan::GatedDelta {
        k_heads,
        v_heads,
        dim_k,
        dim_v,
        tiled,
        scale: 0.25,
    };
    let ins = [raw[0], k, raw[2], g, beta];
    let out = f.op(Op::Scan { scan, slot }, &ins, &[values]);
    let sizes = format!("{k_heads}x{dim_k}/{v_heads}x{dim_v}");
    let name = format!("scan/gated_delta/{sizes}/tiled={tiled}/per_channel={per_channel}");
    Case::new(name, f, vec![out])
        .ulps(ULPS)
        .mixed_steps()
        .kept_steps()
}
