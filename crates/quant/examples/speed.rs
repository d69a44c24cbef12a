//! Prints how many million elements a second each type is written and read at, on one thread.
//!
//! `cargo run --release -p tokkata-quant --example speed [TYPE...]`

use std::time::{Duration, Instant};

use tokkata_core::DType;
use tokkata_quant::{can_quantize, dequantize, quantize};

const WIDTH: usize = 4096;
const ROWS: usize = 8;

/// The shortest of repeated runs, as million elements a second.
fn rate(mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = Duration::MAX;
    let mut runs = 0;
    while runs < 3 || start.elapsed() < Duration::from_millis(1000) {
        let one = Instant::now();
        run();
        best = best.min(one.elapsed());
        runs += 1;
    }
    (ROWS * WIDTH) as f64 / best.as_secs_f64() / 1e6
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let x: Vec<f32> = (0..ROWS * WIDTH)
        .map(|_| (0..6).map(|_| uniform()).sum())
        .collect();
    let weights: Vec<f32> = (0..WIDTH).map(|_| uniform() + 0.5).collect();
    let named: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "{:8} {:>10} {:>10} {:>10}",
        "type", "write", "weighted", "read"
    );
    for &dtype in DType::ALL.iter().filter(|&&t| can_quantize(t)) {
        if !named.is_empty() && !named.iter().any(|n| n == dtype.name()) {
            continue;
        }
        let mut bytes = vec![0; dtype.row_bytes(x.len()).ok_or("rows are whole blocks")?];
        let mut back = vec![0.0; x.len()];
        let mut write = |w| {
            rate(|| {
                let _ = quantize(dtype, &x, WIDTH, w, &mut bytes);
            })
        };
        let (plain, weighted) = (write(None), write(Some(&weights[..])));
        let read = rate(|| {
            let _ = dequantize(dtype, &bytes, &mut back);
        });
        println!(
            "{:8} {plain:10.1} {weighted:10.1} {read:10.1}",
            dtype.name()
        );
    }
    Ok(())
}
