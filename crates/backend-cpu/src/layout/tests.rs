use super::*;

fn plan(parts: &[Part], order: Order) -> Result<Matrix, LayoutError> {
    Matrix::plan(256, parts, order)
}

const fn part(dtype: DType, rows: usize) -> Part {
    Part { dtype, rows }
}

#[test]
fn shares_cover_all_panels_in_order() {
    let mixed = plan(
        &[
            part(DType::Q4_K, 100),
            part(DType::F32, 33),
            part(DType::Q6_K, 1),
        ],
        Order::Sequential,
    );
    let paired = plan(
        &[part(DType::Q4_0, 90), part(DType::Q4_0, 90)],
        Order::Alternating,
    );
    for matrix in [mixed.unwrap(), paired.unwrap()] {
        for count in 1..20 {
            let shares: Vec<_> = (0..count).map(|i| matrix.share(i, count)).collect();
            assert_eq!(
                (shares[0].start, shares[count - 1].end),
                (0, matrix.panels())
            );
            assert!(shares.windows(2).all(|w| w[0].end == w[1].start));
        }
    }
}

#[test]
fn shares_carry_about_equally_many_bytes() {
    let matrix = plan(
        &[part(DType::Q4_0, 1600), part(DType::F32, 1600)],
        Order::Sequential,
    )
    .unwrap();
    let bytes = |range: Range<usize>| -> usize {
        range
            .map(|p| matrix.segment(matrix.panel(p).segment).panel_bytes)
            .sum()
    };
    let (a, b) = (bytes(matrix.share(0, 2)), bytes(matrix.share(1, 2)));
    assert!(a.abs_diff(b) * 20 < a + b, "{a} and {b}");
}

#[test]
fn alternating_panels_lie_next_to_each_other() {
    let matrix = plan(
        &[part(DType::Q4_0, 40), part(DType::Q4_0, 40)],
        Order::Alternating,
    )
    .unwrap();
    let panels: Vec<_> = (0..6).map(|p| matrix.panel(p)).collect();
    assert_eq!(
        panels.iter().map(|p| p.row).collect::<Vec<_>>(),
        [0, 40, 16, 56, 32, 72]
    );
    assert_eq!(
        panels.iter().map(|p| p.rows).collect::<Vec<_>>(),
        [16, 16, 16, 16, 8, 8]
    );
    assert!(panels.windows(2).all(|p| p[0].byte + 4 * 576 == p[1].byte));
}

#[test]
fn wrong_shapes_are_errors_that_say_so() {
    let error = Matrix::plan(100, &[part(DType::Q4_0, 4)], Order::Sequential).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a row of 100 elements is not a whole number of Q4_0 blocks"
    );
    let error = plan(
        &[part(DType::Q4_0, 4), part(DType::Q4_0, 5)],
        Order::Alternating,
    )
    .unwrap_err();
    assert!(matches!(error, LayoutError::CannotAlternate));
    let error = plan(&[part(DType::F32, usize::MAX / 2)], Order::Sequential).unwrap_err();
    assert!(matches!(error, LayoutError::TooLarge { .. }));
}

#[test]
fn a_failing_source_is_reported() {
    let pool = Pool::new(2);
    let source = |_: usize, rows: Range<usize>, _: &mut [u8]| {
        if rows.end == 64 {
            Err(std::io::Error::other("disk gone"))
        } else {
            Ok(())
        }
    };
    let result = Matrix::pack(
        &pool,
        256,
        &[part(DType::Q4_0, 64)],
        Order::Sequential,
        &source,
    );
    assert_eq!(
        result.unwrap_err().to_string(),
        "reading weights: disk gone"
    );
}
