use super::*;
use crate::caps::Caps;
use crate::kernels::Forms;
use crate::layout::{Order, PANEL_ROWS, Part};
use crate::pool::Pool;

/// A small generator of repeatable noise.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform between -1 and 1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Blocks of random bytes whose float factors are sane.
fn random_blocks(dtype: DType, blocks: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let at = bytes.len();
        bytes.extend((0..dtype.block_bytes()).map(|_| noise.next() as u8));
        set_factors(dtype, &mut bytes[at..], noise);
    }
    bytes
}

fn set_factors(dtype: DType, block: &mut [u8], noise: &mut Noise) {
    let halves: &[usize] = match dtype {
        DType::F16 => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q8_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        DType::F32 | DType::BF16 | DType::F64 | DType::Q8_K => &[],
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => &[],
        DType::IQ1_M | DType::MXFP4 | DType::NVFP4 => &[],
        _ => &[0],
    };
    for &at in halves {
        block[at..at + 2].copy_from_slice(&half::f16::from_f32(noise.value()).to_le_bytes());
    }
    match dtype {
        DType::F32 | DType::Q8_K => block[..4].copy_from_slice(&noise.value().to_le_bytes()),
        DType::F64 => block.copy_from_slice(&f64::from(noise.value()).to_le_bytes()),
        DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(noise.value()).to_le_bytes()),
        DType::MXFP4 => block[0] = 120 + block[0] % 16,
        DType::IQ1_M => block[55] = block[55] & 0x0f | 0x20,
        _ => {}
    }
}

struct Case {
    k: usize,
    parts: Vec<Part>,
    order: Order,
    raw: Vec<Vec<u8>>,
}

impl Case {
    fn new(k: usize, parts: &[Part], order: Order, noise: &mut Noise) -> Self {
        let raw = parts
            .iter()
            .map(|p| random_blocks(p.dtype, p.rows * k / p.dtype.block_elems(), noise));
        Self {
            k,
            parts: parts.to_vec(),
            order,
            raw: raw.collect(),
        }
    }

    fn one(dtype: DType, rows: usize, k: usize, noise: &mut Noise) -> Self {
        Self::new(k, &[Part { dtype, rows }], Order::Sequential, noise)
    }

    fn matrix(&self, pool: &Pool) -> Matrix {
        let source = |part: usize, rows: Range<usize>, to: &mut [u8]| {
            let bytes = self.parts[part].dtype.row_bytes(self.k).unwrap();
            to.copy_from_slice(&self.raw[part][rows.start * bytes..rows.end * bytes]);
            Ok(())
        };
        Matrix::pack(pool, self.k, &self.parts, self.order, &source).unwrap()
    }

    /// All weights, dequantised, part after part.
    fn weights(&self) -> Vec<f32> {
        let part = |(part, raw): (&Part, &Vec<u8>)| {
            tokkata_quant::dequantize_vec(part.dtype, raw, part.rows * self.k).unwrap()
        };
        self.parts.iter().zip(&self.raw).flat_map(part).collect()
    }
}

fn activations(kernel: &Kernel, x: &[f32], k: usize, forms: Forms) -> Activations {
    let mut a = Activations::default();
    let rows = x.len() / k;
    let writer = a.begin(rows, k, forms);
    for (r, row) in x.chunks(k).enumerate() {
        // SAFETY: one thread.
        unsafe { writer.write(kernel, r, row) };
    }
    a
}

fn multiply(kernel: &Kernel, matrix: &Matrix, x: &[f32], splits: usize) -> Vec<f32> {
    let a = activations(kernel, x, matrix.k(), kernel.forms(matrix));
    let mut y = vec![f32::NAN; a.rows() * matrix.rows()];
    // SAFETY: one thread.
    let mut store = unsafe { Store::new(&mut y, matrix.rows()) };
    for i in 0..splits {
        kernel.matmul(
            matrix,
            &a,
            matrix.share(i, splits),
            &mut Scratch::default(),
            &mut store,
        );
    }
    y
}

/// Every set, each with both ways to stream stored panels.
fn kernels() -> Vec<Kernel> {
    let mut all = Caps::all();
    all.extend(Caps::tiles());
    let sets = all.iter().filter_map(Kernel::new);
    sets.flat_map(|set| [false, true].map(|wide| Kernel { wide, ..set }))
        .collect()
}

fn portable() -> Kernel {
    Kernel::new(&Caps::limited_to("portable").unwrap()).unwrap()
}

/// The row as the integer form holds it, in `f64`.
fn quantised_row(row: &[f32], group: usize) -> Vec<f64> {
    let block = |b: &[f32]| {
        let top = b.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        let (scale, inverse) = (top / 127.0, 127.0 / top);
        let code = |x: &f32| f64::from((x * inverse).round_ties_even());
        b.iter()
            .map(|x| {
                if top == 0.0 {
                    0.0
                } else {
                    code(x) * f64::from(scale)
                }
            })
            .collect::<Vec<_>>()
    };
    row.chunks(group).flat_map(block).collect()
}

fn whole(row: Vec<f64>) -> Vec<(f64, f64)> {
    row.into_iter().map(|x| (x, 0.0)).collect()
}

/// A value as two bfloat16.
fn split(x: f32) -> (f64, f64) {
    let high = half::bf16::from_f32(x);
    let low = half::bf16::from_f32(x - high.to_f32());
    (high.to_f64(), low.to_f64())
}

/// Checks `y` against an `f64` product; rounding of `f32` is all that may differ.
fn check(kernel: &Kernel, case: &Case, matrix: &Matrix, (x, y): (&[f32], &[f32])) {
    let weights = case.weights();
    for (row, y) in x.chunks(case.k).zip(y.chunks(matrix.rows())) {
        // What a weight is multiplied with, and what only its upper sixteen bits are.
        let row: Vec<(f64, f64)> = match kernel.forms(matrix) {
            Forms { integer: true, .. } => whole(quantised_row(row, 32)),
            Forms { folded: true, .. } => whole(quantised_row(row, 128)),
            Forms { split: true, .. } => row.iter().map(|&x| split(x)).collect(),
            _ => whole(row.iter().map(|&x| f64::from(x)).collect()),
        };
        for (n, (w, &y)) in weights.chunks(case.k).zip(y).enumerate() {
            let upper = |w: f32| f64::from(f32::from_bits(w.to_bits() & 0xffff_0000));
            let terms = w.iter().zip(&row);
            let terms = terms.map(|(&w, &(x, rest))| f64::from(w) * x + upper(w) * rest);
            let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + f64::abs(t)));
            // Minima are subtracted from sums that they can exceed many times over.
            let bound =
                4e-6 * size + 1e-6 * w.iter().fold(0.0_f64, |m, &w| m.max(f64::from(w).abs()));
            assert!(
                (f64::from(y) - sum).abs() <= bound,
                "{:?} output {n}: {y} for {sum} ± {bound}",
                case.parts
            );
        }
    }
}

/// A matrix that stays in the bytes of its rows.
fn mapped(case: &Case) -> Matrix {
    let rows = case.raw.iter().map(|raw| {
        let all = 0..raw.len();
        tokkata_ir::Mapped::new(std::sync::Arc::new(raw.clone()), all).unwrap()
    });
    Matrix::map(case.k, &case.parts, rows.collect()).unwrap()
}

#[test]
fn a_matrix_in_the_map_gives_the_bits_of_its_panels() {
    let (pool, mut noise) = (Pool::new(2), Noise(11));
    for &dtype in FORMATS {
        let (k, parts) = (512, [Part { dtype, rows: 37 }, Part { dtype, rows: 16 }]);
        let case = Case::new(k, &parts, Order::Sequential, &mut noise);
        let (packed, map) = (case.matrix(&pool), mapped(&case));
        assert_eq!((map.held(), map.bytes()), (0, packed.bytes()));
        for kernel in kernels() {
            for rows in [1, 14] {
                let x = noise.values(rows * k);
                let want = multiply(&kernel, &packed, &x, 1);
                assert_eq!(multiply(&kernel, &map, &x, 3), want, "{dtype} {rows} rows");
            }
            let (mut got, mut want) = (vec![0.0; k], vec![0.0; k]);
            kernel.gather(&map, 40, &mut Scratch::default(), &mut got);
            kernel.gather(&packed, 40, &mut Scratch::default(), &mut want);
            assert_eq!(got, want, "{dtype} gathered");
        }
    }
}

#[test]
fn a_map_of_another_size_is_refused() {
    let case = Case::one(DType::Q4_0, 16, 256, &mut Noise(12));
    let short = tokkata_ir::Mapped::new(std::sync::Arc::new(case.raw[0].clone()), 0..18).unwrap();
    let error = Matrix::map(case.k, &case.parts, vec![short]).unwrap_err();
    assert!(matches!(error, crate::layout::LayoutError::MapTooShort));
}

const FORMATS: &[DType] = DType::ALL;

fn fits(dtype: DType, k: usize) -> bool {
    k.is_multiple_of(dtype.block_elems())
}

#[test]
fn every_format_matches_the_reference_on_every_kernel_set() {
    let (pool, mut noise) = (Pool::new(2), Noise(1));
    for &dtype in FORMATS {
        for (n, k) in [
            (1, 256),
            (16, 512),
            (37, 768),
            (23, 96),
            (18, 160),
            (5, 64),
            (3, 2048),
        ] {
            if !fits(dtype, k) {
                continue;
            }
            let case = Case::one(dtype, n, k, &mut noise);
            let matrix = case.matrix(&pool);
            for rows in [1, 2, 3, 5, 7, 9, 13, 16, 29, 33, 36] {
                let x = noise.values(rows * k);
                let expected = multiply(&portable(), &matrix, &x, 1);
                check(&portable(), &case, &matrix, (&x, &expected));
                for kernel in kernels() {
                    let y = multiply(&kernel, &matrix, &x, 1);
                    if kernel.forms(&matrix) == portable().forms(&matrix) {
                        assert_eq!(y, expected, "{dtype} {n}x{k} rows {rows} {kernel:?}");
                    } else {
                        check(&kernel, &case, &matrix, (&x, &y));
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_alone_in_a_batch_and_in_any_split_has_the_same_bits() {
    let (pool, mut noise) = (Pool::new(3), Noise(2));
    for kernel in kernels() {
        for &dtype in FORMATS {
            let (n, k) = (53, 512);
            let matrix = Case::one(dtype, n, k, &mut noise).matrix(&pool);
            for rows in [7, 23, 29] {
                let x = noise.values(rows * k);
                let batch = multiply(&kernel, &matrix, &x, 1);
                assert_eq!(multiply(&kernel, &matrix, &x, 3), batch, "{dtype} split");
                for (x, y) in x.chunks(k).zip(batch.chunks(n)) {
                    assert_eq!(multiply(&kernel, &matrix, x, 2), y, "{dtype} alone");
                }
            }
        }
    }
}

/// The largest codes times the largest activations, all of one sign: sums must not saturate.
#[test]
fn extreme_codes_and_activations_do_not_saturate() {
    let (pool, mut noise) = (Pool::new(1), Noise(3));
    for &dtype in FORMATS {
        for fill in [0x00, 0xff, 0x7f, 0x80, 0x0f, 0xf0] {
            let k = 512;
            let mut case = Case::one(dtype, 16, k, &mut noise);
            for block in case.raw[0].chunks_mut(dtype.block_bytes()) {
                block.fill(fill);
                set_factors(dtype, block, &mut Noise(7));
            }
            let matrix = case.matrix(&pool);
            for sign in [1.0, -1.0] {
                let x = vec![sign; 14 * k];
                for kernel in kernels() {
                    let y = multiply(&kernel, &matrix, &x, 1);
                    check(&kernel, &case, &matrix, (&x, &y));
                    let alone = multiply(&kernel, &matrix, &x[..k], 1);
                    assert_eq!(alone, &y[..16], "{dtype} filled with {fill:#x}");
                }
            }
        }
    }
}

#[test]
fn gathered_rows_are_the_dequantised_rows() {
    let (pool, mut noise) = (Pool::new(2), Noise(4));
    for kernel in kernels() {
        for &dtype in FORMATS {
            let (n, k) = (37, 768);
            let case = Case::one(dtype, n, k, &mut noise);
            let (matrix, weights) = (case.matrix(&pool), case.weights());
            for row in [0, 15, 16, 36] {
                let mut out = vec![0.0; k];
                kernel.gather(&matrix, row, &mut Scratch::default(), &mut out);
                assert_eq!(out, weights[row * k..(row + 1) * k], "{dtype} row {row}");
            }
        }
    }
}

#[test]
fn parts_of_different_formats_share_a_matrix() {
    let (pool, mut noise) = (Pool::new(2), Noise(5));
    let part = |dtype, rows| Part { dtype, rows };
    let parts = [
        part(DType::Q4_K, 40),
        part(DType::Q6_K, 8),
        part(DType::F16, 17),
        part(DType::IQ3_S, 3),
    ];
    let case = Case::new(512, &parts, Order::Sequential, &mut noise);
    let matrix = case.matrix(&pool);
    assert_eq!((matrix.rows(), matrix.panels()), (68, 3 + 1 + 2 + 1));
    let weights = case.weights();
    for kernel in kernels() {
        for rows in [1, 20] {
            let x = noise.values(rows * 512);
            let y = multiply(&kernel, &matrix, &x, 3);
            let mut first = 0;
            for (i, part) in parts.iter().enumerate() {
                let alone = Case {
                    k: 512,
                    parts: vec![*part],
                    order: Order::Sequential,
                    raw: vec![case.raw[i].clone()],
                };
                let expected = multiply(&kernel, &alone.matrix(&pool), &x, 1);
                for r in 0..rows {
                    let got = &y[r * 68 + first..][..part.rows];
                    assert_eq!(
                        got,
                        &expected[r * part.rows..(r + 1) * part.rows],
                        "part {i}"
                    );
                }
                first += part.rows;
            }
            let mut out = vec![0.0; 512];
            kernel.gather(&matrix, 66, &mut Scratch::default(), &mut out);
            assert_eq!(out, weights[66 * 512..67 * 512]);
        }
    }
}

/// Keeps the tile of a first part until that of the second arrives, and stores their products.
struct Pairs<'a> {
    first: Vec<[f32; ROWS]>,
    at: (Range<usize>, Range<usize>),
    half: usize,
    to: Store<'a>,
}

impl Epilogue for Pairs<'_> {
    fn tile(&mut self, rows: Range<usize>, cols: Range<usize>, values: &[[f32; ROWS]]) {
        if cols.start < self.half {
            self.first = values.to_vec();
            self.at = (rows, cols);
            return;
        }
        assert_eq!(
            self.at,
            (rows.clone(), cols.start - self.half..cols.end - self.half)
        );
        let products = values.iter().zip(&self.first);
        let products: Vec<_> = products
            .map(|(b, a)| std::array::from_fn(|i| a[i] * b[i]))
            .collect();
        self.to.tile(rows, self.at.1.clone(), &products);
    }
}

#[test]
fn alternating_parts_meet_in_the_epilogue() {
    let (pool, mut noise) = (Pool::new(2), Noise(6));
    for dtype in [DType::Q4_0, DType::Q8_0, DType::F16, DType::IQ2_XS] {
        let (k, half) = (256, 100);
        let part = Part { dtype, rows: half };
        let mut case = Case::new(k, &[part, part], Order::Alternating, &mut noise);
        let matrix = case.matrix(&pool);
        case.order = Order::Sequential;
        let plain = case.matrix(&pool);
        for kernel in kernels() {
            for rows in [1, 6, 23, 30] {
                let x = noise.values(rows * k);
                let a = activations(&kernel, &x, k, kernel.forms(&matrix));
                let mut y = vec![f32::NAN; rows * half];
                // SAFETY: one thread.
                let to = unsafe { Store::new(&mut y, half) };
                let mut pairs = Pairs {
                    first: Vec::new(),
                    at: (0..0, 0..0),
                    half,
                    to,
                };
                for i in 0..3 {
                    kernel.matmul(
                        &matrix,
                        &a,
                        matrix.share(i, 3),
                        &mut Scratch::default(),
                        &mut pairs,
                    );
                }
                let both = multiply(&kernel, &plain, &x, 1);
                let product = |i: usize| {
                    both[i / half * 2 * half + i % half]
                        * both[i / half * 2 * half + half + i % half]
                };
                assert_eq!(
                    y,
                    (0..rows * half).map(product).collect::<Vec<_>>(),
                    "{dtype}"
                );
            }
        }
    }
}

#[test]
fn results_can_be_added_to_a_residual_stream() {
    let (pool, mut noise) = (Pool::new(1), Noise(8));
    let case = Case::one(DType::Q5_K, 20, 256, &mut noise);
    let (matrix, x) = (case.matrix(&pool), noise.values(3 * 256));
    let before = noise.values(60);
    let mut y = before.clone();
    let kernel = portable();
    let a = activations(&kernel, &x, 256, kernel.forms(&matrix));
    // SAFETY: one thread.
    let mut add = Add::new(unsafe { Store::new(&mut y, 20) }, 0.5);
    kernel.matmul(
        &matrix,
        &a,
        0..matrix.panels(),
        &mut Scratch::default(),
        &mut add,
    );
    let product = multiply(&kernel, &matrix, &x, 1);
    for i in 0..60 {
        assert_eq!(y[i], before[i] + 0.5 * product[i]);
    }
}

#[test]
fn values_that_are_not_finite_make_their_row_nan() {
    let (pool, mut noise) = (Pool::new(1), Noise(9));
    for dtype in [DType::Q4_0, DType::Q6_K, DType::Q8_0] {
        let matrix = Case::one(dtype, 16, 256, &mut noise).matrix(&pool);
        for kernel in kernels() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = noise.values(2 * 256);
                x[77] = bad;
                let y = multiply(&kernel, &matrix, &x, 1);
                assert!(
                    y[..16].iter().all(|v| v.is_nan()) && y[16..].iter().all(|v| v.is_finite())
                );
            }
        }
    }
}

#[test]
fn panels_are_hardly_larger_than_the_file() {
    let pool = Pool::new(1);
    for &dtype in FORMATS {
        let (n, k) = (4 * PANEL_ROWS, 1024);
        let case = Case::one(dtype, n, k, &mut Noise(10));
        let (file, panels) = (case.raw[0].len(), case.matrix(&pool).bytes());
        let widened = matches!(dtype, DType::I8 | DType::I16);
        assert!(
            widened || panels * 100 <= file * 103,
            "{dtype}: {panels} bytes for {file}"
        );
    }
}

#[test]
fn tiles_are_even_and_hold_every_row_once() {
    for rows in 1..500_usize {
        let tiles = rows.div_ceil(TILE_COLS);
        let mut next = 0;
        for t in 0..tiles {
            let tile = tile::tile_rows(rows, t);
            assert_eq!(tile.start, next);
            assert!(tile.len() == rows / tiles || tile.len() == rows.div_ceil(tiles));
            assert!(tile.clone().all(|row| tile::tile_of(rows, row) == t));
            next = tile.end;
        }
        assert_eq!(next, rows);
    }
}

/// Sums that start at an offset give exact products only then.
#[test]
fn scales_of_chunked_formats_have_few_digits() {
    let mut noise = Noise(77);
    use DType::{
        IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    let chunked = [
        Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,
    ];
    for dtype in chunked {
        let layout = tokkata_quant::Layout::of(dtype).unwrap();
        let mut u = tokkata_quant::Unpacked::new();
        for _ in 0..200 {
            let block = random_blocks(dtype, 1, &mut noise);
            layout.unpack(&block, &mut u).unwrap();
            for sub in 0..layout.elems() / layout.sub_elems() {
                let scale = f64::from(u.scale(sub));
                let product = f64::from(tile::OFFSET) * scale;
                assert_eq!(f64::from(product as f32), product, "{dtype}: {scale}");
            }
        }
    }
}

#[test]
fn no_rows_have_no_results() {
    let pool = Pool::new(1);
    for &dtype in FORMATS {
        let matrix = Case::one(dtype, 16, 256, &mut Noise(81)).matrix(&pool);
        for kernel in kernels() {
            assert!(multiply(&kernel, &matrix, &[], 1).is_empty());
        }
    }
}

/// Every part of a value is the nearest bfloat16, and what is no number stays none.
#[test]
#[cfg(target_arch = "x86_64")]
fn values_are_split_into_two_bfloat16() {
    let Some(kernel) = Caps::tiles().and_then(|caps| Kernel::new(&caps)) else {
        return;
    };
    let forms = Forms {
        split: true,
        ..Forms::default()
    };
    let mut noise = Noise(78);
    let (k, rows) = (75, 19);
    let mut x: Vec<f32> = (0..rows * k)
        .map(|_| noise.value() * 2.0_f32.powi((noise.next() % 60) as i32 - 30))
        .collect();
    let odd = [
        f32::NAN,
        f32::from_bits(0x7fff_ffff),
        f32::from_bits(0x7f80_0001),
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        0.0,
        -0.0,
        1.0 + f32::EPSILON,
    ];
    x[100..109].copy_from_slice(&odd);
    for rows in [1, 5, 16, rows] {
        let a = activations(&kernel, &x[..rows * k], k, forms);
        let height = rows.min(16);
        for (i, &x) in x[..rows * k].iter().enumerate() {
            let (row, at) = (i / k, i % k);
            let first = row / height * height * a.padded_k() * 2 + row % height * 32;
            // SAFETY: the row's parts of the step of this position.
            let [high, low] = [0, 1].map(|part| unsafe {
                let step = 2 * (at / 32) + part;
                *a.split().tiles().add(first + step * height * 32 + at % 32)
            });
            let [high, low] = [high, low].map(half::bf16::from_bits);
            let nearest = half::bf16::from_f32(x);
            let rest = half::bf16::from_f32(x - nearest.to_f32());
            if x.is_nan() {
                assert!(high.is_nan(), "{x} became {high}");
            } else if nearest.is_infinite() {
                assert_eq!((high, low), (nearest, half::bf16::ZERO));
            } else {
                assert_eq!((high, low), (nearest, rest), "{x}");
            }
        }
    }
}

/// So many rows that results are made group by group of panels, and each in several ranges of K.
#[test]
fn rows_alone_have_the_bits_of_many_rows() {
    let (pool, mut noise) = (Pool::new(1), Noise(79));
    for dtype in [DType::F16, DType::BF16, DType::Q4_K] {
        let (n, k, rows) = (300, 1056, 500);
        let k = if fits(dtype, k) { k } else { 1024 };
        let case = Case::one(dtype, n, k, &mut noise);
        let (matrix, x) = (case.matrix(&pool), noise.values(rows * k));
        for kernel in kernels() {
            let many = multiply(&kernel, &matrix, &x, 1);
            for r in [0, 17, 498, 499] {
                let row = &x[r * k..][..k];
                let alone = multiply(&kernel, &matrix, row, 1);
                assert_eq!(alone, many[r * n..][..n], "{dtype} {kernel:?} row {r}");
                check(&kernel, &case, &matrix, (row, &alone));
            }
        }
    }
}

/// What stands for tiles in these tests is what tiles do. Nothing to see on a processor without them.
#[test]
#[cfg(target_arch = "x86_64")]
fn tiles_of_bfloat16_round_as_their_emulation() {
    use super::split::{Multiply, emulation::Emulated};
    if !amx::available() {
        return;
    }
    fn products<T: Multiply>(mut tiles: T, (x, w): (&[u16], &[u8]), start: &[f32]) -> Vec<u32> {
        let mut y = vec![0.0; start.len()];
        // SAFETY: the processor has tiles; a step of sixteen rows and of a panel, and as many results.
        unsafe {
            tiles.load(1, 1, start.as_ptr());
            tiles.rows(x.as_ptr());
            tiles.panel(1, w.as_ptr());
            tiles.add(1, 1);
            tiles.store(1, 1, y.as_mut_ptr());
        }
        y.iter().map(|y| y.to_bits()).collect()
    }
    let mut noise = Noise(80);
    // Up to products that are too small for all their digits.
    for spread in [1, 8, 40, 76] {
        for _ in 0..50 {
            let mut value = || noise.value() * 0.5_f32.powi((noise.next() % spread) as i32);
            let start: Vec<f32> = (0..256).map(|_| value() * value()).collect();
            let bf16 = |x: f32| half::bf16::from_f32(x).to_bits();
            let x: Vec<u16> = (0..512).map(|_| bf16(value())).collect();
            let w: Vec<u8> = (0..512).flat_map(|_| bf16(value()).to_le_bytes()).collect();
            // SAFETY: `available` was true.
            let real = products(unsafe { amx::Tiles::new(16) }, (&x, &w), &start);
            assert_eq!(
                real,
                products(Emulated::new(16), (&x, &w), &start),
                "{spread}"
            );
        }
    }
}
