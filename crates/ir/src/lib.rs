//! The program: what a model computes, as plain data that any backend can lower and replay.
//!
//! This crate holds the words that the other crates share: typed ids, [`Op`], [`Plan`], [`Program`], the
//! [`ModelSpec`] that a descriptor resolves to, the [`StepState`] that changes between replays, the sampler's
//! reference semantics and the [`Device`] contract. It computes nothing of a model itself and knows neither
//! files nor devices.
//!
//! Invariants: a plan is straight-line and single-assignment; every shape is `[lead, dims…]` with the lead
//! named (rows, logit rows, sequences); nothing in a plan changes between replays, everything that does is in
//! the step state.
//!
//! Reading order: [`ids`], [`op`], [`program`], [`spec`], [`weight`], [`step`], [`sample`], [`fusion`], [`tape`],
//! [`backend`], [`arena`], [`device`], [`host`], [`composite`].
//!
//! ```
//! use tokkata_ir::{Lead, Shape};
//! assert_eq!(Shape::rows(&[8, 64]).width(), 512);
//! assert_eq!(Shape::rows(&[8]).lead, Lead::Rows);
//! ```

pub mod adapter;
pub mod arena;
pub mod backend;
pub mod composite;
pub mod device;
pub mod fusion;
pub mod host;
pub mod ids;
pub mod op;
pub mod program;
pub mod sample;
pub mod spec;
pub mod step;
pub mod tape;
pub mod weight;

pub use adapter::{Adapter, LowRank};
pub use arena::ArenaLayout;
pub use backend::{BackendError, LoadOptions, Mapped, StepTime, WeightSource};
pub use composite::Composite;
pub use device::{
    BlockCopy, Delta, Device, Executor, Loaded, LogitRow, Logprob, Logprobs, Progress, Refusal,
    RowInput, RowResult, RowStatus, SeqRows, SeqSlot, Source, Ticket, Work,
};
pub use host::{HostExecutor, Machine, StepInputs};
pub use ids::{ConstId, DeviceId, GroupId, Site, SlotId, ValueId, WeightId};
pub use op::{
    Act, AdaptForm, AttentionOp, BinaryKind, CompressOp, Conv1dOp, GatherIndex, KvSource, Mask,
    NormKind, Op, Pairing, PoolKind, RopeOp, RouteOp, Scan, Score, SelectOp, Selection,
};
pub use program::{
    CacheGroup, CacheKind, ConstData, Lead, Limits, Node, Plan, PlanRole, Port, Program, Shape,
    SlotDef, ValType, ValueDef,
};

pub use spec::ModelSpec;
pub use step::StepState;
pub use weight::{Axis, Fold, RawRows, Recipe, SourceInfo, Uses, WeightDef, read_f32};
