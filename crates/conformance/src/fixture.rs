//! Small programs built in code, their weights in memory, and steps over them.

mod run;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tokkata_core::DType;
use tokkata_ir::{
    Adapter, ArenaLayout, Axis, BackendError, CacheGroup, CacheKind, ConstData, ConstId, Device,
    DeviceId, Executor, GroupId, HostExecutor, Lead, Limits, LoadOptions, LowRank, Machine, Mapped,
    Node, Op, Plan, PlanRole, Port, Program, Recipe, Shape, Site, SlotDef, SlotId, Uses, ValType,
    ValueDef, ValueId, WeightDef, WeightId, WeightSource,
};
use tokkata_quant::{QuantError, dequantize, quantize};

pub use run::{Feed, Kinds, Rows, Run, finish};

/// A number in −1..1 that follows from a name and an index alone.
#[must_use]
pub fn noise(name: &str, index: usize) -> f32 {
    noise_of(seed(name), index)
}

fn seed(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3)
    })
}

fn noise_of(seed: u64, index: usize) -> f32 {
    let bits = tokkata_ir::sample::uniform(seed, index as u64) >> 40;
    bits as f32 / 8_388_608.0 - 1.0
}

/// `len` numbers of [`noise`].
#[must_use]
pub fn noises(name: &str, len: usize) -> Vec<f32> {
    let seed = seed(name);
    (0..len).map(|i| noise_of(seed, i)).collect()
}

/// Rows of so many values in a format; all columns count the same.
///
/// # Errors
/// A format that cannot be written.
///
/// # Panics
/// When blocks do not divide the rows.
pub fn encoded(dtype: DType, values: &[f32], cols: usize) -> Result<Vec<u8>, QuantError> {
    let row = dtype.row_bytes(cols).expect("blocks divide the row");
    let mut bytes = vec![0; row * values.len() / cols];
    quantize(dtype, values, cols, Some(&vec![1.0; cols]), &mut bytes)?;
    Ok(bytes)
}

/// What was encoded, by format, columns and the values' bits.
type Encoded = HashMap<(DType, usize, Vec<u32>), Arc<Vec<u8>>>;

/// The same as [`encoded`]. A suite takes most of its time to write the slow formats, and every subject wants the same tensors.
fn encoded_once(dtype: DType, values: &[f32], cols: usize) -> Result<Arc<Vec<u8>>, QuantError> {
    static KEPT: LazyLock<Mutex<Encoded>> = LazyLock::new(Mutex::default);
    let bits: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
    let key = (dtype, cols, bits);
    let kept = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(bytes) = kept().get(&key) {
        return Ok(Arc::clone(bytes));
    }
    let bytes = Arc::new(encoded(dtype, values, cols)?);
    kept().insert(key, Arc::clone(&bytes));
    Ok(bytes)
}

/// Tensors in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryWeights {
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Arc<Vec<u8>>,
}

impl MemoryWeights {
    /// Encodes `values` as `dtype` under `name`; `shape` is slowest first.
    ///
    /// # Panics
    /// When the shape and the values differ or the format cannot be written.
    pub fn add(&mut self, name: &str, dtype: DType, shape: &[usize], values: &[f32]) {
        let cols = shape.last().copied().unwrap_or(1);
        assert_eq!(
            shape.iter().product::<usize>(),
            values.len(),
            "shape of {name}"
        );
        let bytes = encoded_once(dtype, values, cols).unwrap_or_else(|e| panic!("{name}: {e}"));
        let shape = shape.to_vec();
        let tensor = Tensor {
            dtype,
            shape,
            bytes,
        };
        self.tensors.insert(name.to_owned(), tensor);
    }

    fn get(&self, name: &str) -> Result<&Tensor, BackendError> {
        let absent = || BackendError::Weight(format!("tensor {name} is absent"));
        self.tensors.get(name).ok_or_else(absent)
    }
}

impl WeightSource for MemoryWeights {
    fn tensor(&self, name: &str) -> Option<(DType, Vec<usize>)> {
        let tensor = self.tensors.get(name)?;
        Some((tensor.dtype, tensor.shape.clone()))
    }

    fn read(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let bytes = &self.get(name)?.bytes[offset as usize..];
        out.copy_from_slice(&bytes[..out.len()]);
        Ok(())
    }

    fn mapped(&self, name: &str) -> Option<Mapped> {
        let bytes = &self.tensors.get(name)?.bytes;
        let all = 0..bytes.len();
        Mapped::new(Arc::clone(bytes) as _, all)
    }

    fn decode(&self, dtype: DType, raw: &[u8], out: &mut [f32]) -> Result<(), BackendError> {
        dequantize(dtype, raw, out).map_err(|e| BackendError::Weight(e.to_string()))
    }
}

/// A program under construction: one plan, every value of which is an output until [`Fixture::show`] picks some.
#[derive(Clone, Debug)]
pub struct Fixture {
    program: Program,
    weights: MemoryWeights,
    adapters: Vec<Vec<LowRank>>,
}

/// Limits that every small test fits in.
#[must_use]
pub fn small_limits() -> Limits {
    Limits {
        rows: 64,
        seqs: 8,
        logit_rows: 16,
        ctx: 64,
        enc_rows: 16,
        draft: 3,
        adapters: 2,
        ..Limits::default()
    }
}

impl Default for Fixture {
    fn default() -> Self {
        Fixture::new(small_limits())
    }
}

impl Fixture {
    /// An empty program.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let plan = Plan {
            role: PlanRole::Main,
            inputs: Vec::new(),
            outputs: Vec::new(),
            values: Vec::new(),
            nodes: Vec::new(),
        };
        let program = Program {
            plans: vec![plan],
            weights: Vec::new(),
            caches: Vec::new(),
            consts: Vec::new(),
            limits,
            n_vocab: 0,
            n_embd: 0,
        };
        Fixture {
            program,
            weights: MemoryWeights::default(),
            adapters: Vec::new(),
        }
    }

    /// A weight of the given format. Its uses are those of a matrix; see [`Fixture::vector`], [`Fixture::table`].
    pub fn matrix(&mut self, dtype: DType, shape: &[u32], values: &[f32]) -> WeightId {
        let uses = Uses {
            matmul: true,
            ..Uses::default()
        };
        self.weight(dtype, shape, values, uses)
    }

    /// A weight used elementwise, F32.
    pub fn vector(&mut self, shape: &[u32], values: &[f32]) -> WeightId {
        let uses = Uses {
            vector: true,
            ..Uses::default()
        };
        self.weight(DType::F32, shape, values, uses)
    }

    /// A weight whose rows are looked up.
    pub fn table(&mut self, dtype: DType, shape: &[u32], values: &[f32]) -> WeightId {
        let uses = Uses {
            gather: true,
            ..Uses::default()
        };
        self.weight(dtype, shape, values, uses)
    }

    fn weight(&mut self, dtype: DType, shape: &[u32], values: &[f32], uses: Uses) -> WeightId {
        let id = WeightId(self.program.weights.len() as u32);
        let name = format!("weight.{}", id.0);
        let dims: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        self.weights.add(&name, dtype, &dims, values);
        self.program.weights.push(WeightDef {
            recipe: Recipe::Source(name.clone()),
            site: Site::global(&name),
            name,
            shape: shape.to_vec(),
            axes: vec![Axis::Other; shape.len()],
            uses,
        });
        id
    }

    /// A constant.
    pub fn constant(&mut self, data: ConstData) -> ConstId {
        self.program.consts.push(data);
        ConstId(self.program.consts.len() as u32 - 1)
    }

    /// A cache group.
    pub fn cache(&mut self, kind: CacheKind, block_size: u32, slots: Vec<SlotDef>) -> GroupId {
        self.program.caches.push(CacheGroup {
            kind,
            slots,
            dtype: self.program.limits.kv_dtype,
            block_size,
        });
        GroupId(self.program.caches.len() as u32 - 1)
    }

    /// A recurrent group of one state.
    pub fn state(&mut self, len: u32) -> SlotId {
        let group = self.cache(CacheKind::Recurrent, 1, vec![SlotDef::State { len }]);
        SlotId { group, slot: 0 }
    }

    /// A value.
    pub fn value(&mut self, lead: Lead, dims: &[u32], dtype: ValType) -> ValueId {
        let plan = &mut self.program.plans[0];
        let dims = dims.to_vec();
        let shape = Shape { lead, dims };
        plan.values.push(ValueDef { shape, dtype });
        ValueId(plan.values.len() as u32 - 1)
    }

    /// An input over all rows, set by each step.
    pub fn input(&mut self, dims: &[u32]) -> ValueId {
        self.input_of(Lead::Rows, dims, ValType::F32)
    }

    /// An input of any lead and type.
    pub fn input_of(&mut self, lead: Lead, dims: &[u32], dtype: ValType) -> ValueId {
        let value = self.value(lead, dims, dtype);
        let plan = &mut self.program.plans[0];
        plan.inputs.push(Port {
            name: format!("in{}", value.0),
            value,
        });
        value
    }

    /// A node from values to values.
    pub fn node(&mut self, op: Op, ins: &[ValueId], outs: &[ValueId]) {
        let plan = &mut self.program.plans[0];
        plan.nodes.push(Node {
            site: Site::global(op.name()),
            op,
            ins: ins.to_vec(),
            outs: outs.to_vec(),
            device: DeviceId(0),
        });
        let port = |&value: &ValueId| Port {
            name: format!("out{}", value.0),
            value,
        };
        plan.outputs.extend(outs.iter().map(port));
    }

    /// A node with one output of floats over all rows.
    pub fn op(&mut self, op: Op, ins: &[ValueId], dims: &[u32]) -> ValueId {
        let out = self.value(Lead::Rows, dims, ValType::F32);
        self.node(op, ins, &[out]);
        out
    }

    /// Leaves these values alone as outputs.
    pub fn show(&mut self, values: &[ValueId]) {
        let outputs = &mut self.program.plans[0].outputs;
        outputs.retain(|p| values.contains(&p.value));
    }

    /// An adapter that is attached once the program is loaded; its number.
    pub fn adapter(&mut self, pairs: Vec<LowRank>) -> u32 {
        self.adapters.push(pairs);
        self.adapters.len() as u32
    }

    /// How many adapters are attached.
    #[must_use]
    pub fn adapters(&self) -> usize {
        self.adapters.len()
    }

    fn attach(&self, executor: &mut dyn Executor) -> Result<(), BackendError> {
        for pairs in &self.adapters {
            let adapter = Adapter::new(pairs.clone(), &self.program)?;
            executor.attach(&Arc::new(adapter))?;
        }
        Ok(())
    }

    /// The program so far.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, to be changed by hand.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// The weights.
    #[must_use]
    pub fn weights(&self) -> &MemoryWeights {
        &self.weights
    }

    /// Loads the program on a device, with blocks for every sequence, twice over.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load(&self, device: &dyn Device, options: &LoadOptions) -> Result<Run, BackendError> {
        self.load_with(&self.weights, device, options)
    }

    /// As [`Fixture::load`], with weights from elsewhere.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load_with(
        &self,
        weights: &dyn WeightSource,
        device: &dyn Device,
        options: &LoadOptions,
    ) -> Result<Run, BackendError> {
        let program = Arc::new(self.program.clone());
        let loaded = device.load(Arc::clone(&program), weights, options)?;
        let counts = self.blocks();
        let arena = ArenaLayout::for_counts(&loaded.block_bytes(), &counts);
        let names = arena.deal(&counts);
        let mut executor = loaded.open(arena)?;
        self.attach(executor.as_mut())?;
        Ok(Run::new(program, executor, names))
    }

    /// The program on a machine that can be looked into, with as many blocks as [`Fixture::load`] gives it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn mount<M: Machine>(
        &self,
        make: impl FnOnce(Arc<Program>, &MemoryWeights, &ArenaLayout) -> Result<M, BackendError>,
    ) -> Result<Run<HostExecutor<M>>, BackendError> {
        let program = Arc::new(self.program.clone());
        let bytes: Vec<u64> = program.caches.iter().map(CacheGroup::block_bytes).collect();
        let counts = self.blocks();
        let arena = ArenaLayout::for_counts(&bytes, &counts);
        let names = arena.deal(&counts);
        let machine = make(Arc::clone(&program), &self.weights, &arena)?;
        let mut executor = HostExecutor::new(machine, Arc::clone(&program), arena);
        self.attach(&mut executor)?;
        Ok(Run::new(program, Box::new(executor), names))
    }

    /// Blocks of each group.
    fn blocks(&self) -> Vec<u64> {
        let limits = &self.program.limits;
        let blocks = |g: &CacheGroup| 2 * g.table_len(limits) as u64 * u64::from(limits.seqs);
        self.program.caches.iter().map(blocks).collect()
    }
}
