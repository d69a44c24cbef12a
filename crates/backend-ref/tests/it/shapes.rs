//! The shape check names the node and what does not fit.

use tokkata_backend_ref::shape::check;
use tokkata_conformance::fixture::Fixture;
use tokkata_core::DType;
use tokkata_ir::{CacheKind, Conv1dOp, Lead, NormKind, Op, SlotDef, SlotId, ValType, ValueId};

#[track_caller]
fn fault(fixture: &Fixture) -> String {
    let program = fixture.program();
    check(&program.plans[0], program).unwrap_err().to_string()
}

#[test]
fn a_product_of_other_columns() {
    let mut f = Fixture::default();
    let weight = f.matrix(DType::F32, &[2, 3], &[0.0; 6]);
    let x = f.input(&[4]);
    f.op(
        Op::Matmul {
            weight,
            scale: None,
            bias: None,
        },
        &[x],
        &[2],
    );
    let text = "node 0 (matmul at matmul): weight weight.0 has 6 elements, expected 8";
    assert_eq!(fault(&f), text);
}

#[test]
fn an_output_of_another_width() {
    let mut f = Fixture::default();
    let x = f.input(&[4]);
    f.op(Op::SumRuns { width: 2 }, &[x], &[4]);
    let text = "node 0 (sum_runs at sum_runs): %1 is F32 [Rows, 4], expected F32 [Rows, 2]";
    assert_eq!(fault(&f), text);
}

#[test]
fn runs_that_do_not_divide_the_row() {
    let mut f = Fixture::default();
    let x = f.input(&[4]);
    let op = Op::Norm {
        kind: NormKind::Rms,
        eps: 0.0,
        width: 3,
        weight: None,
        bias: None,
    };
    f.op(op, &[x], &[4]);
    assert_eq!(
        fault(&f),
        "node 0 (norm at norm): columns of a run: 3 does not fit 4"
    );
}

#[test]
fn convolutions_whose_frames_do_not_fit() {
    let text = |(kernel, stride, padding, frames), out| {
        let mut f = Fixture::default();
        let op = Conv1dOp {
            weight: f.matrix(
                DType::F32,
                &[2, 2 * kernel],
                &vec![0.0; 4 * kernel as usize],
            ),
            bias: None,
            kernel,
            stride,
            padding,
            frames,
        };
        let x = f.input(&[12]);
        f.op(Op::Conv1d(op), &[x], &[out]);
        fault(&f).replace("node 0 (conv1d at conv1d): ", "")
    };
    let found = text((3, 1, 1, 5), 12);
    assert_eq!(found, "frames of a row: 5 does not fit 12");
    let found = text((3, 4, 1, 6), 3);
    assert_eq!(found, "frames of a stride: 4 does not fit 6");
    let found = text((3, 1, 2, 6), 12);
    assert_eq!(found, "least taps of the padding: 5 does not fit 3");
    let found = text((5, 2, 1, 6), 6);
    assert_eq!(found, "taps: 5 does not fit 4");
    let found = text((3, 2, 1, 6), 12);
    assert_eq!(found, "%1 is F32 [Rows, 12], expected F32 [Rows, 6]");
}

#[test]
fn values_out_of_order() {
    let mut f = Fixture::default();
    let early = f.value(Lead::Rows, &[1], ValType::F32);
    f.op(Op::Copy, &[early], &[1]);
    assert_eq!(
        fault(&f),
        "node 0 (copy at copy): %0 is read before it is written"
    );

    let mut f = Fixture::default();
    let x = f.input(&[1]);
    f.node(Op::Copy, &[x], &[x]);
    assert_eq!(fault(&f), "node 0 (copy at copy): %0 is written twice");

    let mut f = Fixture::default();
    f.op(Op::Copy, &[ValueId(7)], &[1]);
    assert_eq!(
        fault(&f),
        "node 0 (copy at copy): %7 is not a value of the plan"
    );
}

#[test]
fn too_few_inputs() {
    let mut f = Fixture::default();
    let x = f.input(&[1]);
    f.op(Op::Combine, &[x], &[1]);
    assert_eq!(
        fault(&f),
        "node 0 (combine at combine): 1 inputs, expected 2"
    );
}

#[test]
fn a_lead_that_the_op_does_not_take() {
    let mut f = Fixture::default();
    let x = f.input(&[5]);
    let out = f.value(Lead::LogitRows, &[1], ValType::I32);
    f.node(Op::Sample, &[x], &[out]);
    let text = "node 0 (sample at sample): %0 is F32 [Rows, 5], expected F32 [LogitRows, 5]";
    assert_eq!(fault(&f), text);
}

#[test]
fn slots_that_keep_something_else() {
    let mut f = Fixture::default();
    let slot = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 4,
        dim_v: Some(4),
    };
    let group = f.cache(CacheKind::Full, 4, vec![slot]);
    let x = f.input(&[4]);
    f.op(
        Op::Shift {
            slot: SlotId { group, slot: 0 },
        },
        &[x],
        &[4],
    );
    let text = "node 0 (shift at shift): slot g0.0 is Some(Kv { n_kv_heads: 1, dim_k: 4, \
                dim_v: Some(4) }), expected State { len: 4 }";
    assert_eq!(fault(&f), text);
    let mut f = Fixture::default();
    let group = f.cache(CacheKind::Recurrent, 1, vec![]);
    let x = f.input(&[4]);
    f.node(
        Op::CacheWrite {
            slot: SlotId { group, slot: 3 },
        },
        &[x],
        &[],
    );
    assert_eq!(
        fault(&f),
        "node 0 (cache_write at cache_write): slot g0.3 is None, expected keys and values"
    );
}

#[test]
fn selections_that_do_not_fit() {
    let mut f = Fixture::default();
    let slot = SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: 4,
        dim_v: Some(0),
    };
    let group = f.cache(CacheKind::Entries(1), 4, vec![slot]);
    let q = f.input(&[12]);
    let ids = f.value(Lead::Rows, &[8], ValType::I32);
    let op = tokkata_ir::SelectOp {
        slot: SlotId { group, slot: 0 },
        n_heads: 2,
        dim: 6,
        scale: 1.0,
        summed: false,
        top_k: 4,
        unit: 1,
        local: 0,
    };
    f.node(Op::Select(op), &[q], &[ids]);
    let text = "node 0 (select at select): columns of the keys: 6 does not fit 4";
    assert_eq!(fault(&f), text);
    let node = |f: &mut Fixture, change: fn(&mut tokkata_ir::SelectOp)| {
        let Op::Select(op) = &mut f.program_mut().plans[0].nodes[0].op else {
            unreachable!("made above");
        };
        change(op);
        fault(f)
    };
    let text = "node 0 (select at select): %0 is F32 [Rows, 12], expected F32 [Rows, 8]";
    assert_eq!(node(&mut f, |op| op.dim = 4), text);
    let text = "node 0 (select at select): %1 is I32 [Rows, 8], expected I32 [Rows, 3]";
    assert_eq!(node(&mut f, |op| (op.n_heads, op.top_k) = (3, 1)), text);
    let text = "node 0 (select at select): units chosen always: 5 does not fit 1";
    assert_eq!(node(&mut f, |op| op.local = 5), text);
    let text = "node 0 (select at select): 1 inputs, expected 2";
    assert_eq!(node(&mut f, |op| op.summed = true), text);
}
