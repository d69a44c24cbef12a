//! From an op to its kernel.

use tokkata_ir::{BackendError, Op};

use crate::args::{Args, Value};
use crate::cache::Caches;
use crate::kernels::conv::Taps;
use crate::kernels::experts::Experts;
use crate::kernels::matmul::Linear;
use crate::kernels::norm::NormSpec;
use crate::kernels::{
    adapt, attention, columns, compress, conv, elementwise, experts, gather, matmul, norm, rope,
    rows, scan, selection,
};
use crate::real::Real;

/// Runs a node and gives its outputs in order.
pub(crate) fn run_node<R: Real>(
    args: &Args<'_, R>,
    caches: &mut Caches<R>,
) -> Result<Vec<Value<R>>, BackendError> {
    let out = match &args.node.op {
        Op::Prepare => return Ok(Vec::new()),
        Op::CacheWrite { slot } => {
            attention::cache_write(args, *slot, caches);
            return Ok(Vec::new());
        }
        Op::Attention(op) => attention::attention(args, op, caches),
        Op::Conv {
            weight,
            bias,
            kernel,
            slot,
        } => {
            let taps = Taps {
                weight: args.weight(*weight),
                bias: args.maybe(*bias),
                kernel: *kernel as usize,
            };
            conv::conv(args, &taps, *slot, caches)
        }
        Op::Conv1d(op) => conv::conv1d(args, op),
        Op::Compress(op) => compress::compress(args, op, caches),
        Op::Shift { slot } => conv::shift(args, *slot, caches),
        Op::Scan { scan, slot } => scan::scan(args, scan, *slot, caches),
        Op::Select(op) => return Ok(vec![Value::Ints(selection::select(args, op, caches))]),
        Op::Sample | Op::Route(_) | Op::Group { .. } => return integers(args),
        Op::Copy if matches!(args.values[args.node.ins[0].index()], Value::Ints(_)) => {
            return Ok(vec![Value::Ints(args.ints(0).to_vec())]);
        }
        op => row_local(args, op)?,
    };
    Ok(vec![Value::Floats(out)])
}

/// Ops that give integers, alone or besides floats.
fn integers<R: Real>(args: &Args<'_, R>) -> Result<Vec<Value<R>>, BackendError> {
    Ok(match &args.node.op {
        Op::Route(op) => {
            let (ids, weights) = experts::route(args, op)?;
            vec![Value::Ints(ids), Value::Floats(weights)]
        }
        Op::Group { .. } => {
            let (order, starts) = experts::group(args.ints(0));
            vec![Value::Ints(order), Value::Ints(starts)]
        }
        _ => vec![Value::Ints(rows::sample(args))],
    })
}

/// The weights of an expert layer, its sizes read off the weight's shape.
fn experts_of<'a, R>(args: &Args<'a, R>, op: &Op) -> Experts<'a> {
    let Op::Experts {
        weight,
        scale,
        bias,
        ..
    } = *op
    else {
        unreachable!("called for experts only")
    };
    let shape = &args.program.weights[weight.index()].shape;
    Experts {
        weight: args.weight(weight),
        scale: args.maybe(scale),
        bias: args.maybe(bias),
        n: shape[1] as usize,
        k: shape[2] as usize,
    }
}

/// Ops of floats that no cache knows of.
fn row_local<R: Real>(args: &Args<'_, R>, op: &Op) -> Result<Vec<R>, BackendError> {
    Ok(match *op {
        Op::Gather { table, index } => gather::gather(args, table, index)?,
        Op::Norm {
            kind,
            eps,
            width,
            weight,
            bias,
        } => {
            let spec = NormSpec { kind, eps, width };
            norm::norm(args, spec, args.maybe(weight), args.maybe(bias))
        }
        Op::Matmul {
            weight,
            scale,
            bias,
        } => {
            let linear = Linear {
                weight: args.weight(weight),
                scale: args.maybe(scale),
                bias: args.maybe(bias),
            };
            matmul::matmul(args.mat(0), &linear)
        }
        Op::HeadMatmul { weight, heads } => {
            matmul::head_matmul(args.mat(0), args.weight(weight), heads)
        }
        Op::Slice { group, start, len } => columns::slice(args.mat(0).data, group, start, len),
        Op::Concat { groups } => columns::concat(args, groups),
        Op::Repeat {
            width,
            times,
            tiled,
        } => {
            let x = args.mat(0);
            let run = if tiled { x.width } else { width as usize };
            columns::repeat(x.data, run, times)
        }
        Op::Rope(ref op) => rope::rope(args, op),
        Op::PosScale {
            coef,
            length,
            offset,
        } => rope::pos_scale(args, coef, length, offset),
        Op::Softmax { width } => norm::softmax(args.mat(0), width),
        Op::Sinkhorn { n, iterations, eps } => norm::sinkhorn(args.mat(0), n, iterations, eps),
        Op::SumRuns { width } => norm::sum_runs(args.mat(0), width),
        Op::RmsRuns { width, eps } => norm::rms_runs(args.mat(0), width, eps),
        Op::GaussianTopK { z } => norm::gaussian_top_k(args.mat(0), z),
        Op::SelectRows => rows::select_rows(args),
        Op::Pool(kind) => rows::pool(args, kind),
        Op::Experts { top_k, .. } => experts::experts(args, top_k as usize, &experts_of(args, op)),
        Op::Combine => experts::combine(args.mat(0), args.mat(1)),
        Op::Adapt { weight, form } => adapt::adapt(args, weight, form),
        _ => return elements(args, op),
    })
}

/// Ops on elements and pairs of elements.
fn elements<R: Real>(args: &Args<'_, R>, op: &Op) -> Result<Vec<R>, BackendError> {
    let x = args.mat(0);
    Ok(match *op {
        Op::Unary(act) => elementwise::map(x, |x| elementwise::activate(act, x)),
        Op::Gate { act, clamp } => elementwise::gate(x, args.mat(1), act, clamp),
        Op::Binary {
            kind,
            a_scale,
            b_scale,
        } => elementwise::binary(kind, (x, a_scale), (args.mat(1), b_scale)),
        Op::Weighted { kind, weight } => elementwise::weighted(kind, x, args.weight(weight)),
        Op::PerRun { kind, width } => elementwise::per_run(kind, x, args.mat(1), width),
        Op::Affine { scale, offset } => {
            elementwise::map(x, |x| x * R::from(scale) + R::from(offset))
        }
        Op::Softcap { cap } => {
            let cap = R::from(cap);
            elementwise::map(x, |x| cap * (x / cap).tanh())
        }
        Op::Clamp { lo, hi } => elementwise::map(x, |x| x.max(R::from(lo)).min(R::from(hi))),
        Op::Suppress { first, last } => elementwise::suppress(x, first, last),
        Op::Copy => x.data.to_vec(),
        _ => {
            return Err(BackendError::Unsupported {
                backend: "ref",
                op: op.name().to_owned(),
            });
        }
    })
}
