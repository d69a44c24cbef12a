//! Products of a prompt's rows by cooperative matrices: a row has the same bits in a tile of any height, and they are near the reference.

use tokkata_conformance::fixture::Kinds;

use super::*;

/// Columns of a row, and outputs: no multiple of a tile's.
const COLUMNS: u32 = 512;
const OUTPUTS: u32 = 300;
/// Rows of a prompt: more than a tall tile.
const PROMPT: usize = 150;

fn fixture(dtype: DType) -> (Fixture, ValueId, ValueId) {
    let mut f = Fixture::new(Limits {
        rows: PROMPT as u32,
        seqs: 1,
        logit_rows: 1,
        ctx: 2 * PROMPT as u32,
        ..Limits::default()
    });
    let x = f.input(&[COLUMNS]);
    let all = noises("weight", (COLUMNS * OUTPUTS) as usize);
    let product = Op::Matmul {
        weight: f.matrix(dtype, &[OUTPUTS, COLUMNS], &all),
        scale: None,
        bias: Some(f.vector(&[OUTPUTS], &noises("bias", OUTPUTS as usize))),
    };
    let y = f.op(product, &[x], &[OUTPUTS]);
    f.show(&[y]);
    (f, x, y)
}

/// What a device makes of a prompt in steps of so many rows.
fn results(device: &dyn Device, dtype: DType, steps: &[usize]) -> Vec<f32> {
    let (fixture, x, y) = fixture(dtype);
    let mut run = fixture
        .load(device, &LoadOptions::default())
        .expect("a load");
    run.kinds = Kinds::Prompts;
    let (mut all, mut at) = (Vec::new(), 0);
    for &n in steps {
        let row = |i: usize| noises(&i.to_string(), COLUMNS as usize);
        let feed = Feed {
            values: vec![(x, (at..at + n).flat_map(row).collect())],
            ..Feed::default()
        };
        run.step(&[Rows::of(0, at..at + n)], &feed).expect("a step");
        all.extend_from_slice(&run.floats(y)[..n * OUTPUTS as usize]);
        at += n;
    }
    all
}

/// The adapter with cooperative matrices, whose tiles are tall from so many on.
fn open(tiles: u32) -> Result<WgpuDevice, String> {
    let mut device = WgpuDevice::open(0)?;
    if !device.halves_prompts() {
        return Err("no cooperative matrices".to_owned());
    }
    device.choices.tiles = tiles;
    Ok(device)
}

#[test]
fn rows_have_the_same_bits_in_tiles_of_any_height() {
    if let Err(why) = open(1) {
        eprintln!("skipped: wgpu: {why}");
        return;
    }
    let same = |a: &[f32], b: &[f32]| bits(a) == bits(b);
    for dtype in [DType::Q4_K, DType::Q5_1, DType::F16, DType::IQ2_S] {
        let want = results(&RefBackend::default(), dtype, &[PROMPT]);
        let low = results(&open(u32::MAX).expect("an adapter"), dtype, &[PROMPT]);
        let error = error(&want, &low);
        assert!(error < 3e-7, "{dtype}: {error}");
        let tall = open(1).expect("an adapter");
        for steps in [&[PROMPT][..], &[1, 149], &[70, 80]] {
            assert!(
                same(&low, &results(&tall, dtype, steps)),
                "{dtype}, steps of {steps:?} rows"
            );
        }
        // Another kernel makes them than those of low tiles.
        let broken = |tiles| {
            let device = open(tiles).expect("an adapter");
            device.break_tall_tiles();
            results(&device, dtype, &[PROMPT])
        };
        assert!(same(&low, &broken(u32::MAX)), "{dtype}");
        assert!(!same(&low, &broken(1)), "{dtype}");
    }
}
