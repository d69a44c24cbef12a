//! Quantised bytes against digests of llama.cpp's results.

#[path = "support/inputs.rs"]
#[allow(dead_code)]
mod inputs;

use inputs::{ROWS, WIDTH, digest, gaussian, importance, shape};
use tokkata_core::DType;
use tokkata_quant::{QuantError, can_quantize, dequantize_vec, needs_importance, quantize};

struct Golden {
    dtype: DType,
    shape: &'static str,
    weighted: bool,
    digest: &'static str,
    error: f64,
}

fn goldens() -> impl Iterator<Item = Golden> {
    include_str!("goldens/quantise.txt").lines().map(|line| {
        let [name, shape, kind, digest, error] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("malformed golden {line}");
        };
        Golden {
            dtype: DType::from_name(name).expect("a known type"),
            shape,
            weighted: kind == "weighted",
            digest,
            error: error.parse().expect("a number"),
        }
    })
}

fn quantised(dtype: DType, x: &[f32], width: usize, w: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xa5; dtype.row_bytes(x.len()).expect("whole blocks")];
    quantize(dtype, x, width, w, &mut bytes).expect("valid input");
    bytes
}

/// Squared error of every element, times its importance.
fn error(dtype: DType, bytes: &[u8], x: &[f32], w: Option<&[f32]>) -> f64 {
    let back = dequantize_vec(dtype, bytes, x.len()).expect("whole blocks");
    let weight = |i: usize| w.map_or(1.0, |w| f64::from(w[i % w.len()]));
    let square =
        |(i, (&a, &b)): (usize, (&f32, &f32))| weight(i) * (f64::from(a) - f64::from(b)).powi(2);
    back.iter().zip(x).enumerate().map(square).sum()
}

#[test]
fn every_format_has_llama_cpp_bytes() {
    let w = importance(WIDTH);
    let mut wrong = Vec::new();
    for golden in goldens() {
        let x = shape(golden.shape);
        let w = golden.weighted.then_some(&w[..]);
        let bytes = quantised(golden.dtype, &x, WIDTH, w);
        let ratio = error(golden.dtype, &bytes, &x, w) / golden.error;
        // llama.cpp puts what follows a zero sub-block of IQ3_S in the wrong place.
        if golden.dtype == DType::IQ3_S && golden.shape == "edges" {
            assert!(ratio < 1.0, "no better than misplaced sub-blocks: {ratio}");
        } else if digest(&bytes) != golden.digest {
            wrong.push(format!(
                "{} {} {} error x{ratio:.6}",
                golden.dtype, golden.shape, golden.weighted
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "differ from llama.cpp:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn goldens_cover_every_target() {
    for &dtype in DType::ALL
        .iter()
        .filter(|&&t| can_quantize(t) && t != DType::F32)
    {
        let of = |weighted| {
            goldens()
                .filter(|g| g.dtype == dtype && g.weighted == weighted)
                .count()
        };
        assert_eq!(of(true), 4, "{dtype} with importance");
        assert_eq!(
            of(false),
            if needs_importance(dtype) { 0 } else { 4 },
            "{dtype} without"
        );
    }
}

#[test]
fn row_ranges_give_the_bytes_of_one_call() {
    let x = gaussian("ranges", ROWS * 512);
    let w = importance(512);
    for &dtype in DType::ALL.iter().filter(|&&t| can_quantize(t)) {
        let whole = quantised(dtype, &x, 512, Some(&w));
        let parts: Vec<u8> = x
            .chunks(512)
            .flat_map(|row| quantised(dtype, row, 512, Some(&w)))
            .collect();
        assert_eq!(whole, parts, "{dtype}");
    }
}

#[test]
fn bad_input_is_an_error() {
    let mut dst = vec![0; 144];
    let mut x = gaussian("bad", 256);
    let run = |dtype, x: &[f32], width, w: Option<&[f32]>, dst: &mut [u8]| {
        quantize(dtype, x, width, w, dst)
    };
    let text = |r: Result<(), QuantError>| r.unwrap_err().to_string();
    let q4 = DType::Q4_K;
    assert_eq!(
        text(run(q4, &x, 256, None, &mut dst[..143])),
        "256 elements of Q4_K take 144 bytes, found 143"
    );
    assert_eq!(
        text(run(q4, &x, 128, None, &mut dst)),
        "Q4_K stores blocks of 256 elements, which do not divide 128"
    );
    assert_eq!(
        text(run(q4, &x, 512, None, &mut dst)),
        "256 elements are not whole rows of 512"
    );
    assert_eq!(
        text(run(q4, &x, 0, None, &mut dst)),
        "Q4_K stores blocks of 256 elements, which do not divide 0"
    );
    assert_eq!(
        text(run(q4, &x, 256, Some(&[1.0; 255]), &mut dst)),
        "rows of 256 elements need as many importance weights, found 255"
    );
    assert_eq!(
        text(run(q4, &x, 256, Some(&[-1.0; 256]), &mut dst)),
        "the importance weight of column 0 is not a finite, non-negative number"
    );
    assert_eq!(
        text(run(DType::IQ1_S, &x, 256, None, &mut [0; 50])),
        "IQ1_S needs an importance matrix; make one with `tokkata imatrix`"
    );
    assert_eq!(
        text(run(DType::Q8_K, &x, 256, None, &mut [0; 292])),
        "no tensor is quantised to Q8_K"
    );
    x[77] = f32::NAN;
    assert_eq!(
        text(run(q4, &x, 256, None, &mut dst)),
        "the value in row 0, column 77 is not finite"
    );
}
