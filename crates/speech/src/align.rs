//! Which frame belongs to which token: a path through attention weights.

/// Attention of the chosen heads, each `[tokens, frames]`, as one matrix: every head's weights over frames are made
/// comparable from token to token, smoothed over frames, and averaged. `frames` counts the columns that are heard.
#[must_use]
pub fn combine(heads: &[Vec<f32>], tokens: usize, frames: usize) -> Vec<f64> {
    let mut sum = vec![0.0f64; tokens * frames];
    for head in heads {
        let mut weights = head.clone();
        normalise(&mut weights, tokens, frames);
        for row in weights.chunks_exact_mut(frames) {
            median(row, 7);
        }
        sum.iter_mut()
            .zip(&weights)
            .for_each(|(s, w)| *s += f64::from(*w));
    }
    sum.iter().map(|s| s / heads.len() as f64).collect()
}

/// Each column less its mean over the tokens, by its deviation.
fn normalise(weights: &mut [f32], tokens: usize, frames: usize) {
    for column in 0..frames {
        let of = |row: usize| f64::from(weights[row * frames + column]);
        let mean = (0..tokens).map(of).sum::<f64>() / tokens as f64;
        let spread = (0..tokens).map(|r| (of(r) - mean).powi(2)).sum::<f64>();
        let deviation = (spread / tokens as f64).sqrt();
        for row in 0..tokens {
            let w = &mut weights[row * frames + column];
            *w = ((f64::from(*w) - mean) / deviation) as f32;
        }
    }
}

/// The median of so many neighbours of each value, mirrored at the ends; a shorter row stays as it is.
pub fn median(row: &mut [f32], width: usize) {
    let (half, n) = (width / 2, row.len());
    if n <= half {
        return;
    }
    let from = row.to_vec();
    let mirrored = |i: isize| {
        let last = n as isize - 1;
        let i = i.abs();
        from[if i > last { 2 * last - i } else { i } as usize]
    };
    let mut near = vec![0.0; width];
    for (i, value) in row.iter_mut().enumerate() {
        for (j, near) in near.iter_mut().enumerate() {
            *near = mirrored(i as isize + j as isize - half as isize);
        }
        near.sort_unstable_by(f32::total_cmp);
        *value = near[half];
    }
}

/// The cheapest way through a matrix of costs `[rows, columns]`, from corner to corner: its steps, row and column. Where
/// costs are no numbers (a single column is no different from token to token), it runs outside, at −1. Sums are doubles, as numba makes
/// openai's: with single floats a word may begin a frame elsewhere.
#[must_use]
pub fn cheapest_path(costs: &[f64], rows: usize, columns: usize) -> Vec<(isize, isize)> {
    let width = columns + 1;
    let mut sums = vec![f64::INFINITY; (rows + 1) * width];
    let mut from = vec![0u8; (rows + 1) * width];
    sums[0] = 0.0;
    for j in 1..=columns {
        for i in 1..=rows {
            let both = sums[(i - 1) * width + j - 1];
            let up = sums[(i - 1) * width + j];
            let left = sums[i * width + j - 1];
            let (least, way) = if both < up && both < left {
                (both, 0)
            } else if up < both && up < left {
                (up, 1)
            } else {
                (left, 2)
            };
            sums[i * width + j] = costs[(i - 1) * columns + j - 1] + least;
            from[i * width + j] = way;
        }
    }
    let (mut i, mut j, mut path) = (rows, columns, Vec::new());
    while i > 0 || j > 0 {
        path.push((i as isize - 1, j as isize - 1));
        let way = match (i, j) {
            (0, _) => 2,
            (_, 0) => 1,
            _ => from[i * width + j],
        };
        i -= usize::from(way != 2);
        j -= usize::from(way != 1);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_follows_the_cheapest_cells() {
        // A diagonal of two columns per row.
        let costs: Vec<f64> = (0..5)
            .flat_map(|i| (0..10).map(move |j| if j / 2 == i { -1.0 } else { 0.0 }))
            .collect();
        let path = cheapest_path(&costs, 5, 10);
        let on: usize = path.iter().filter(|(i, j)| j / 2 == *i).count();
        assert_eq!(on, 10);
        assert_eq!((path[0], path[path.len() - 1]), ((0, 0), (4, 9)));
    }

    #[test]
    fn without_numbers_a_path_runs_before_the_first_column() {
        let path = cheapest_path(&[f64::NAN; 3], 3, 1);
        assert_eq!(path, [(0, -1), (1, -1), (2, -1), (2, 0)]);
    }

    #[test]
    fn sums_are_doubles() {
        // By single floats both ways to the last cell cost as much.
        let path = cheapest_path(&[-1000.0, -1.000_001, -1.0, 0.0], 2, 2);
        assert_eq!(path, [(0, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn a_median_forgets_what_stands_alone() {
        let mut row = [0.0, 0.0, 9.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        median(&mut row, 3);
        assert_eq!(row, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let mut short = [3.0, 1.0, 2.0];
        median(&mut short, 7);
        assert_eq!(short, [3.0, 1.0, 2.0]);
    }
}
