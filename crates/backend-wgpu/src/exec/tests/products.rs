//! Products of rows that are made integers before: a row has the same bits beside however many others, and they are near the reference.

use tokkata_conformance::fixture::Kinds;
use tokkata_ir::op::GateClamp;
use tokkata_ir::{Act, BinaryKind};

use super::*;

/// Columns of a row: more than workgroups share at once, and no multiple of what 32 threads read.
const COLUMNS: u32 = 2304;
/// Outputs of a product: no multiple of a workgroup's.
const OUTPUTS: u32 = 37;
/// Rows of a step at most: more than kernels take at a time.
const MOST: usize = 11;

/// A norm, a gate of two products of it, and the sum of a product and another value; both inputs and both results.
fn fixture(dtype: DType) -> (Fixture, [ValueId; 2], [ValueId; 2]) {
    let mut f = Fixture::new(Limits {
        rows: 2 * MOST as u32,
        seqs: MOST as u32,
        logit_rows: 1,
        ctx: 64,
        ..Limits::default()
    });
    let [x, z] = [COLUMNS, OUTPUTS].map(|n| f.input(&[n]));
    let weight = f.vector(&[COLUMNS], &noises("norm", COLUMNS as usize));
    let norm = Op::Norm {
        kind: NormKind::Rms,
        eps: 1e-5,
        width: COLUMNS,
        weight: Some(weight),
        bias: None,
    };
    let normed = f.op(norm, &[x], &[COLUMNS]);
    let mut product = |name: &str, x: ValueId| {
        let all = noises(name, (COLUMNS * OUTPUTS) as usize);
        let weight = f.matrix(dtype, &[OUTPUTS, COLUMNS], &all);
        let bias = Some(f.vector(&[OUTPUTS], &noises(name, OUTPUTS as usize)));
        let product = Op::Matmul {
            weight,
            scale: None,
            bias,
        };
        f.op(product, &[x], &[OUTPUTS])
    };
    let [gate, up] = ["gate", "up"].map(|name| product(name, normed));
    let down = product("down", x);
    let silu = Op::Gate {
        act: Act::Silu,
        clamp: GateClamp::None,
    };
    let gated = f.op(silu, &[gate, up], &[OUTPUTS]);
    let sum = Op::Binary {
        kind: BinaryKind::Add,
        a_scale: 1.0,
        b_scale: 1.0,
    };
    let sum = f.op(sum, &[down, z], &[OUTPUTS]);
    f.show(&[gated, sum]);
    (f, [x, z], [gated, sum])
}

/// Whose rows those of a step are.
#[derive(Clone, Copy, Debug)]
enum Whose {
    /// One sequence's.
    One,
    /// Each of another one: such steps may be recorded once.
    Each,
    /// One sequence's, and behind them so many of another one's prompt.
    Beside(usize),
}

/// What a device makes of rows that follow each other, in steps of so many: by rows, both results one after the other.
fn results(device: &dyn Device, dtype: DType, (steps, whose): (&[usize], Whose)) -> Vec<Vec<f32>> {
    let (fixture, ins, outs) = fixture(dtype);
    let mut run = fixture
        .load(device, &LoadOptions::default())
        .expect("a load");
    let prompts = match whose {
        Whose::Beside(rows) => rows,
        Whose::One | Whose::Each => 0,
    };
    run.kinds = if prompts > 0 {
        Kinds::Mixed
    } else {
        Kinds::Replies
    };
    let (mut all, mut at) = (Vec::new(), 0);
    for (step, &n) in steps.iter().enumerate() {
        let values = ins.map(|value| {
            let width = run.program.plans[0].value(value).shape.width();
            let row = |i: usize| noises(&format!("{}.{i}", value.0), width);
            (value, (at..at + n + prompts).flat_map(row).collect())
        });
        let feed = Feed {
            values: values.into(),
            ..Feed::default()
        };
        let rows: Vec<Rows> = match whose {
            Whose::One => vec![Rows::of(0, at..at + n)],
            Whose::Each => (0..n).map(|seq| Rows::of(seq, step..step + 1)).collect(),
            Whose::Beside(others) => {
                vec![Rows::of(0, at..at + n), Rows::of(1, at..at + others)]
            }
        };
        run.step(&rows, &feed).expect("a step");
        let found = outs.map(|out| run.floats(out));
        let row = |i: usize| {
            let own = i * OUTPUTS as usize..(i + 1) * OUTPUTS as usize;
            found.iter().flat_map(|f| f[own.clone()].to_vec()).collect()
        };
        all.extend((0..n).map(row));
        at += n;
    }
    all
}

/// With all that the new kernels use of an adapter, or the least.
fn open(most: bool) -> Result<WgpuDevice, String> {
    let abilities = Abilities {
        subgroups: most,
        dots: true,
        shares_more: most,
        fours: most,
        ..Abilities::BASE
    };
    let mut device = WgpuDevice::open_as(0, abilities)?;
    // Here are few weights.
    assert!(device.choose("weights=0"));
    Ok(device)
}

#[test]
fn rows_beside_others_have_the_bits_of_rows_alone() {
    if let Err(why) = open(true) {
        eprintln!("skipped: wgpu: {why}");
        return;
    }
    let bits = |rows: Vec<Vec<f32>>| -> Vec<Vec<u32>> { rows.iter().map(|r| bits(r)).collect() };
    for (dtype, most) in [
        (DType::Q4_K, true),
        (DType::Q5_1, false),
        (DType::Q6_K, true),
    ] {
        let device = open(most).expect("an adapter");
        let want = results(&RefBackend::default(), dtype, (&[MOST], Whose::One));
        let alone = results(&device, dtype, (&[1; MOST], Whose::One));
        let error = error(want.iter().flatten(), alone.iter().flatten());
        assert!(error < 1e-8, "{dtype}: {error}");
        let alone = bits(alone);
        for steps in [&[2, 9][..], &[4, 7], &[MOST]] {
            let found = bits(results(&device, dtype, (steps, Whose::One)));
            assert!(alone == found, "{dtype}, steps of {steps:?} rows");
        }
        let apart = bits(results(&device, dtype, (&[2, 9], Whose::Each)));
        assert!(alone == apart, "{dtype}, of several sequences");
        let beside = bits(results(&device, dtype, (&[3, 8], Whose::Beside(5))));
        assert!(alone == beside, "{dtype}, beside rows of a prompt");
        // Another kernel makes them than one of rows alone.
        let device = open(most).expect("an adapter");
        device.break_kernels("let g = begin + lane;", "let g = lane;");
        let found = bits(results(&device, dtype, (&[1; MOST], Whose::One)));
        assert!(alone == found, "{dtype}");
        for steps in [&[2, 2, 2, 2, 3][..], &[4, 3, 4], &[MOST]] {
            let found = bits(results(&device, dtype, (steps, Whose::One)));
            let same = found.iter().zip(&alone).position(|(a, b)| a == b);
            assert_eq!(same, None, "{dtype}, steps of {steps:?} rows");
        }
    }
}
