//! Goldens: what an oracle computed for a tiny model, without the model's weights.
//!
//! A golden is `NAME.json` (metadata, shapes of tensors, ids) and `NAME.f32` (the oracle's rows, little-endian); some
//! have `NAME.second.f32` too, the rows of another program, or `NAME.lora.f32`, rows through an adapter.
//! The weights follow from the names of the tensors, see [`crate::generate`].

pub mod absent;
pub mod bisect;
mod check;
mod expect;
pub mod mutate;
pub mod selection;
mod text;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokkata_archs::beside::{PREFIX, guest_of};
use tokkata_core::Metadata;

pub use check::{Outcome, Way, outcomes, verify, ways};
pub use expect::{AGREES, COARSE, Expectations};
pub use selection::Selected;
pub use text::{entry, from_json, tensors, to_json};

use crate::models::Failure;
use crate::models::heads::DRAFT_INPUT;

/// What the oracle was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Logits of every position.
    Logits,
    /// The same, decoded one by one, where the oracle treats rows of a batch differently.
    Steps,
    /// The same by flash attention, without which the oracle selects no keys.
    Flash,
    /// The vector of every position.
    Vectors,
    /// Logits of the decoder's positions over an encoded sequence.
    Decoder,
    /// Logits of every multi-token-prediction head.
    Heads,
}

impl Rows {
    /// All, with the names that files and the oracle's driver use.
    pub const ALL: [(Rows, &'static str); 6] = [
        (Rows::Logits, "logits"),
        (Rows::Steps, "steps"),
        (Rows::Flash, "flash"),
        (Rows::Vectors, "vectors"),
        (Rows::Decoder, "decoder"),
        (Rows::Heads, "heads"),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Rows::ALL.iter().find(|r| r.0 == self);
        found.map_or("logits", |r| r.1)
    }

    /// The output of the main plan that is read, where it is not the usual one.
    #[must_use]
    pub fn output(self) -> Option<&'static str> {
        match self {
            Rows::Vectors => Some("hidden"),
            Rows::Heads => Some(DRAFT_INPUT),
            _ => None,
        }
    }
}

/// A tiny model and what an oracle made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// The file's stem: an architecture string, perhaps with a variant after `+`.
    pub name: String,
    /// The program that computed the rows, with its version.
    pub oracle: String,
    /// Another program that gave the rows in `also`.
    pub second: Option<String>,
    /// What was computed.
    pub rows: Rows,
    /// Positions.
    pub positions: usize,
    /// Seed of the ids.
    pub seed: u32,
    /// The model's metadata, without a tokenizer.
    pub metadata: Metadata,
    /// Names and shapes (slowest first) of the tensors, all of them F32.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Every so many columns of a row are kept, from the first on.
    pub stride: usize,
    /// What the oracle can do without and the forms that it takes, where it was asked: see [`absent`].
    pub optional: Option<Vec<String>>,
    /// What indexers choose by the oracle's scores.
    pub selections: Vec<Selected>,
    /// The oracle's rows.
    pub want: Vec<f32>,
    /// The second program's rows.
    pub also: Vec<f32>,
    /// The oracle's rows through the [first adapter](crate::adapters::first) of the golden, where it was asked.
    pub adapted: Vec<f32>,
}

impl Golden {
    /// The folder of the committed goldens.
    #[must_use]
    pub fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens")
    }

    /// Names of the goldens in a folder, sorted.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn list(folder: &Path) -> Result<Vec<String>, Failure> {
        let entries =
            std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut names: Vec<String> = entries
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Holds every named golden against `faults`, which says what is wrong, or `None` where it has nothing to say; so many at a time.
    /// What does not load is the goldens' own test's, and only told. How many had something to say.
    ///
    /// # Panics
    /// With all that is wrong, or when fewer than `least` goldens had something to say.
    pub fn hold(
        names: &[String],
        (least, jobs): (usize, usize),
        faults: impl Fn(usize, &Golden) -> Result<Option<Vec<String>>, Failure> + Sync,
    ) -> usize {
        let rest = Mutex::new(names.iter().enumerate());
        let next = || rest.lock().expect("no panic").next();
        let (wrong, ran) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let work = || {
            while let Some((i, name)) = next() {
                let golden = Golden::read(&Golden::folder(), name).expect("golden");
                match faults(i, &golden) {
                    Ok(None) => {}
                    Ok(Some(found)) => {
                        ran.fetch_add(1, Ordering::Relaxed);
                        let found = found.into_iter().map(|fault| format!("{name}: {fault}"));
                        wrong.lock().expect("no panic").extend(found);
                    }
                    Err(error) => println!("{name}: {error}"),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..jobs {
                scope.spawn(work);
            }
            work();
        });
        let (mut wrong, ran) = (wrong.into_inner().expect("no panic"), ran.into_inner());
        wrong.sort();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(ran >= least, "{ran} goldens, expected {least}");
        ran
    }

    /// Reads a golden; its rows are empty where the oracle has not run yet.
    ///
    /// # Errors
    /// Files that cannot be read or say something else.
    pub fn read(folder: &Path, name: &str) -> Result<Golden, Failure> {
        let path = folder.join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
        let mut golden = from_json(name, &text).map_err(|e| format!("{name}: {e}"))?;
        let rows = |ending: &str| {
            let bytes = std::fs::read(folder.join(format!("{name}.{ending}")));
            bytes.map_or(Vec::new(), |bytes| floats(&bytes))
        };
        golden.want = rows("f32");
        golden.also = rows("second.f32");
        golden.adapted = rows("lora.f32");
        Ok(golden)
    }

    /// Writes its files; rows of a second program or of an adapter that are no longer known are removed.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), Failure> {
        let write = |ending: &str, bytes: &[u8]| {
            std::fs::write(folder.join(format!("{}.{ending}", self.name)), bytes)
                .map_err(|e| format!("{}: {e}", self.name))
        };
        write("json", to_json(self).as_bytes())?;
        let bytes = |rows: &[f32]| {
            rows.iter()
                .flat_map(|v| v.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        write("f32", &bytes(&self.want))?;
        for (ending, rows) in [("second.f32", &self.also), ("lora.f32", &self.adapted)] {
            if rows.is_empty() {
                let _ = std::fs::remove_file(folder.join(format!("{}.{ending}", self.name)));
            } else {
                write(ending, &bytes(rows))?;
            }
        }
        Ok(())
    }

    /// Removes a key of the metadata.
    pub fn unset(&mut self, key: &str) {
        let mut kept = Metadata::default();
        for (name, value) in self.metadata.iter().filter(|(name, _)| *name != key) {
            kept.insert(name, value.clone());
        }
        self.metadata = kept;
    }

    /// The architecture string.
    #[must_use]
    pub fn arch(&self) -> &str {
        self.metadata.str("general.architecture").unwrap_or("")
    }

    /// The architecture of the drafter beside the model, whose keys and tensors have a prefix.
    #[must_use]
    pub fn guest(&self) -> Option<&str> {
        guest_of(&self.metadata)
    }

    /// Whether it says something about an architecture.
    #[must_use]
    pub fn is_of(&self, arch: &str) -> bool {
        self.guest().unwrap_or(self.arch()) == arch
    }

    /// Tokens of the block that its drafter fills; 0 where it fills none.
    #[must_use]
    pub fn block(&self) -> usize {
        let size = |guest| format!("{PREFIX}{guest}.block_size");
        let size = self.guest().and_then(|g| self.metadata.uint(&size(g)));
        size.unwrap_or(0) as usize
    }

    /// Rows of the token table.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        let key = format!("{}.vocab_size", self.arch());
        let table = self.tensors.iter().find(|t| t.0 == "token_embd.weight");
        self.metadata
            .uint(&key)
            .map(|v| v as usize)
            .or_else(|| table.map(|t| t.1[0]))
            .unwrap_or(1)
    }

    /// The ids that were fed.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        ids(self.seed, self.positions, self.vocabulary() as u32)
    }

    /// The ids that a decoder was fed.
    #[must_use]
    pub fn decoder_ids(&self) -> Vec<u32> {
        ids(
            self.seed.wrapping_add(1),
            self.positions / 2,
            self.vocabulary() as u32,
        )
    }
}

/// Every `stride`-th column of rows of `width`.
#[must_use]
pub fn sample(rows: &[f32], width: usize, stride: usize) -> Vec<f32> {
    let kept = |row: &[f32]| row.iter().step_by(stride).copied().collect::<Vec<f32>>();
    rows.chunks(width).flat_map(kept).collect()
}

/// A fixed pseudo-random sequence of ids.
#[must_use]
pub fn ids(seed: u32, len: usize, vocabulary: u32) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocabulary
    };
    (0..len).map(|_| next()).collect()
}

/// Little-endian floats.
#[must_use]
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|w| f32::from_le_bytes(*w)).collect()
}
