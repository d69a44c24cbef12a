//! Heads whose attention follows the sound, of published models by the names of their files: openai's code lists them, and
//! whisper.cpp's files do not.

/// Layer and head.
type Head = (u32, u32);

/// A model, its decoder's layers and heads, and those that follow.
type Known = (&'static str, (u32, u32), &'static [Head]);

#[rustfmt::skip]
const PUBLISHED: &[Known] = &[
    ("tiny.en", (4, 6), &[(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]),
    ("tiny", (4, 6), &[(2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)]),
    ("base.en", (6, 8), &[(3, 3), (4, 7), (5, 1), (5, 5), (5, 7)]),
    ("base", (6, 8), &[(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)]),
    ("small.en", (12, 12), &[(6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8), (9, 10), (10, 0),
        (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4)]),
    ("small", (12, 12), &[(5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)]),
    ("medium.en", (24, 16), &[(11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12), (17, 14),
        (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12)]),
    ("medium", (24, 16), &[(13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)]),
    ("large-v1", (32, 20), &[(9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15)]),
    ("large-v2", (32, 20), &[(10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11), (18, 19),
        (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7), (23, 13), (25, 5), (26, 1), (26, 12), (27, 15)]),
    ("large-v3", (32, 20), &[(7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1), (25, 6)]),
    ("large-v3-turbo", (4, 20), &[(2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)]),
];

/// Those of a file that has the name of a published model (`ggml-base.en-q5_1.bin`) and its sizes.
pub(super) fn published(file: &str, sizes: (u32, u32)) -> Option<Vec<Head>> {
    let stem = file.strip_prefix("ggml-")?.strip_suffix(".bin")?;
    let quantised = |rest: &str| rest.is_empty() || rest.starts_with("-q");
    let fits = |k: &&Known| k.1 == sizes && stem.strip_prefix(k.0).is_some_and(quantised);
    let known = PUBLISHED.iter().find(fits)?;
    Some(known.2.to_vec())
}

#[cfg(test)]
mod tests {
    use super::{PUBLISHED, published};

    #[test]
    fn heads_follow_from_whole_names_and_sizes() {
        let count = |file: &str, sizes| published(file, sizes).map(|heads| heads.len());
        assert_eq!(count("ggml-base.en.bin", (6, 8)), Some(5));
        assert_eq!(count("ggml-base-q5_1.bin", (6, 8)), Some(8));
        assert_eq!(count("ggml-large-v3-turbo-q8_0.bin", (4, 20)), Some(6));
        assert_eq!(count("ggml-large-v3.bin", (32, 20)), Some(10));
        assert_eq!(count("ggml-base.en.bin", (6, 12)), None);
        assert_eq!(count("ggml-base-german.bin", (6, 8)), None);
        assert_eq!(count("base.bin", (6, 8)), None);
    }

    #[test]
    fn every_head_is_one_of_its_model() {
        for (name, (layers, heads), all) in PUBLISHED {
            assert!(all.iter().all(|h| h.0 < *layers && h.1 < *heads), "{name}");
            assert!(all.is_sorted(), "{name}");
        }
    }
}
