//! Goldens with heads as wide as those of real models, written token by token over several splits of the cache: what devices
//! attend with in many ways, which have the same bits.

use tokkata_archs::Registry;
use tokkata_backend_cpu::CpuBackend;
use tokkata_core::{DType, Value};
use tokkata_ir::Device;

use crate::golden::{AGREES, Golden};
use crate::models::{Failure, Feeding, Target, load_for, nmse};
use crate::{cuda, generate};

/// Positions: more than two splits of 128, and a part of one.
const POSITIONS: usize = 300;
/// Most error where products round activations to bytes: of that, since what is cached follows; not of attention.
const ROUNDED: f64 = 1e-2;
/// A window that begins inside of a split.
const WINDOW: usize = 140;

/// Blocks as tapes attend over.
const REPLY: Feeding = Feeding {
    block_size: 32,
    ..Feeding::TOKEN_BY_TOKEN
};

/// The same, three tokens at a time: rows of a step see each other.
const DRAFT: Feeding = Feeding {
    chunk: 3,
    tries: true,
    ..REPLY
};

/// A golden whose heads have other widths and numbers.
#[derive(Clone, Copy, Debug)]
struct Wide {
    golden: &'static str,
    /// What matrices are kept in: formats that GPUs have kernels of their own for.
    dtype: DType,
    /// Columns of a head.
    dim: usize,
    /// Heads of queries, and of keys and values.
    heads: [usize; 2],
}

const fn wide(golden: &'static str, dtype: DType, dim: usize, heads: [usize; 2]) -> Wide {
    Wide {
        golden,
        dtype,
        dim,
        heads,
    }
}

/// Queries of a key by ones, twos, threes, fours and eights; with norms and without, windows and sinks; so many heads that a GPU
/// has fewer blocks than they have splits.
const ALL: [Wide; 11] = [
    wide("llama", DType::F16, 64, [4, 4]),
    wide("llama", DType::Q8_0, 64, [4, 2]),
    wide("llama", DType::BF16, 64, [6, 2]),
    wide("llama", DType::Q4_0, 64, [16, 2]),
    wide("llama", DType::F16, 64, [128, 32]),
    wide("qwen3", DType::F16, 128, [4, 4]),
    wide("qwen3", DType::Q4_0, 128, [4, 2]),
    wide("qwen3", DType::BF16, 128, [8, 2]),
    wide("gpt-oss", DType::F16, 64, [16, 2]),
    wide("gpt-oss", DType::Q8_0, 128, [2, 1]),
    wide("gemma3", DType::F16, 128, [4, 2]),
];

impl Wide {
    fn most_error(self) -> f64 {
        match self.dtype {
            DType::F16 | DType::BF16 => AGREES,
            _ => ROUNDED,
        }
    }

    fn read(self) -> Result<Golden, Failure> {
        let mut golden = Golden::read(&Golden::folder(), self.golden)?;
        let [queries, keys] = self.heads.map(|n| n * self.dim);
        let arch = golden.arch().to_owned();
        for (key, value) in [
            ("context_length", 2 * POSITIONS),
            ("attention.head_count", self.heads[0]),
            ("attention.head_count_kv", self.heads[1]),
            ("attention.key_length", self.dim),
            ("attention.key_length_swa", self.dim),
            ("attention.value_length", self.dim),
            ("attention.value_length_swa", self.dim),
            ("attention.sliding_window", WINDOW),
            ("rope.dimension_count", self.dim),
            ("rope.dimension_count_swa", self.dim),
        ] {
            let key = format!("{arch}.{key}");
            if golden.metadata.get(&key).is_some() {
                golden.metadata.insert(key, Value::U32(value as u32));
            }
        }
        for (name, shape) in &mut golden.tensors {
            let mut parts = name.rsplit('.');
            let (ending, stem) = (parts.next(), parts.next());
            match (stem, ending) {
                (Some("attn_q"), Some("weight" | "bias")) => shape[0] = queries,
                (Some("attn_k" | "attn_v"), Some("weight" | "bias")) => shape[0] = keys,
                (Some("attn_output"), Some("weight")) => shape[1] = queries,
                (Some("attn_q_norm" | "attn_k_norm"), _) => shape[0] = self.dim,
                (Some("attn_sinks"), _) => shape[0] = self.heads[0],
                (Some("rope_freqs"), _) => shape[0] = self.dim / 2,
                _ => {}
            }
        }
        golden.positions = POSITIONS;
        Ok(golden)
    }
}

/// Logits behind each token.
fn replies(
    golden: &Golden,
    dtype: DType,
    (device, feeding): (&dyn Device, Feeding),
) -> Result<Vec<f32>, Failure> {
    let target = Target {
        kv_dtype: DType::F16,
        ..Target::new(device, POSITIONS, feeding)
    };
    let file = generate::kept_as(golden, dtype)?;
    let mut loaded = load_for(&file, &Registry::builtin(), &target)?;
    loaded.logits(&golden.ids(), feeding)
}

/// Holds ways of a device, by their names, against an oracle and against each other, bit for bit.
///
/// # Panics
/// With all that is wrong.
pub fn verify(oracle: &dyn Device, ways: &[(&str, &dyn Device)]) {
    let mut faults = Vec::new();
    for case in ALL {
        let golden = case.read().expect("a golden");
        let all =
            |way| replies(&golden, case.dtype, way).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let want = all((oracle, REPLY));
        let mut first: Option<Vec<f32>> = None;
        let drafts = ways.iter().map(|&(_, device)| ("drafts", (device, DRAFT)));
        let ways = ways.iter().map(|&(name, device)| (name, (device, REPLY)));
        let ways: Vec<(&str, (&dyn Device, Feeding))> = ways.chain(drafts.take(1)).collect();
        for (name, way) in &ways {
            let got = all(*way);
            let error = nmse(&got, &want);
            if error.is_nan() || error > case.most_error() {
                faults.push(format!("{case:?}, {name}: error {error:.2e}"));
            }
            let other = first.get_or_insert_with(|| got.clone());
            let mut pairs = other.iter().zip(&got);
            if let Some(at) = pairs.position(|(a, b)| a.to_bits() != b.to_bits()) {
                let position = at / (got.len() / POSITIONS);
                let (beside, _) = ways[0];
                faults.push(format!(
                    "{case:?}, {name}: other bits than {beside} from position {position} on"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Holds what the first GPU attends with against the CPU.
///
/// # Errors
/// One line that says why there is no GPU.
///
/// # Panics
/// As [`verify`].
pub fn verify_cuda() -> Result<(), String> {
    let launches = cuda()?.without_tapes();
    let (tapes, meetings, deep) = (cuda()?, cuda()?.without_words(), cuda()?.with_deep_tapes());
    let ways: [(&str, &dyn Device); 4] = [
        ("launches", &launches),
        ("tapes", &tapes),
        ("tapes that meet", &meetings),
        ("deep tapes", &deep),
    ];
    verify(&CpuBackend, &ways);
    Ok(())
}
