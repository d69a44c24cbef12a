//! Vectors of texts.
//!
//! A model is opened for vectors by [`Purpose::Vectors`], or beside text by [`Purpose::Both`]; [`Model::embed`] then gives one vector per text, or one
//! per token without pooling. A text's vector has the same bits alone and among others. Models whose rows see each
//! other in both directions take a text in one step; causal ones take long texts in chunks, as far as the pooling
//! needs the last row alone.
//!
//! ```no_run
//! use tokkata::{Checkpoint, Model, OpenOptions, normalize};
//! # fn main() -> tokkata::Result<()> {
//! let checkpoint = Checkpoint::open("bge.gguf".as_ref(), &[])?;
//! let texts = vec![checkpoint.encode_text(b"a cat")?, checkpoint.encode_text(b"a dog")?];
//! let options = OpenOptions::default().for_texts(&checkpoint, None, &texts)?;
//! let mut vectors = Model::load(checkpoint, &options, None)?.embed(&texts)?;
//! vectors.iter_mut().for_each(|v| normalize(v));
//! # Ok(())
//! # }
//! ```

use std::num::NonZeroU32;

use tokkata_engine::{EventKind, ReadRequest};
use tokkata_ir::spec::ModelSpec;
use tokkata_ir::{Limits, PlanRole, PoolKind, Program};
use tokkata_plan::BuildOptions;
use tokkata_text::tokenizer::EncodeOptions;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::{DEFAULT_CTX, OpenOptions, Purpose};

/// Texts of a step at most.
const SHARED_TEXTS: usize = 16;

/// How the rows of a text become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Every row stays.
    None,
    /// The mean of the rows.
    Mean,
    /// The first row.
    Cls,
    /// The last row.
    Last,
    /// What the classifier makes of a row: a score per label.
    Rank,
}

impl Pooling {
    /// All, with the names that people type, in the order of the numbers that files use.
    pub const ALL: [(&'static str, Pooling); 5] = [
        ("none", Pooling::None),
        ("mean", Pooling::Mean),
        ("cls", Pooling::Cls),
        ("last", Pooling::Last),
        ("rank", Pooling::Rank),
    ];

    /// The pooling called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Pooling::ALL.iter().find(|p| p.0 == name);
        found.map(|p| p.1)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Pooling::ALL.iter().find(|p| p.1 == self);
        found.map_or("none", |p| p.0)
    }

    /// The output of the plan that holds it, and the rows it is made of.
    fn output(self) -> (&'static str, Option<PoolKind>) {
        match self {
            Pooling::None => ("rows", None),
            Pooling::Mean => ("pooled", Some(PoolKind::Mean)),
            Pooling::Cls => ("pooled", Some(PoolKind::First)),
            Pooling::Last => ("pooled", Some(PoolKind::Last)),
            Pooling::Rank => ("scores", None),
        }
    }
}

/// Where a loaded model leaves its vectors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorShape {
    pooling: Pooling,
    /// The plan that gives them.
    role: PlanRole,
    width: usize,
    /// Texts longer than a step are fed in chunks.
    chunked: bool,
}

impl VectorShape {
    /// How it is pooled.
    pub(crate) fn pooling(self) -> Pooling {
        self.pooling
    }

    /// Its columns.
    pub(crate) fn width(self) -> usize {
        self.width
    }

    /// Whether a text may be fed in several steps.
    pub(crate) fn is_chunked(self) -> bool {
        self.chunked
    }
}

impl Checkpoint {
    /// The tokens of a text that is to get a vector, with the tokens that the file wants around it.
    ///
    /// # Errors
    /// No tokenizer; bytes that are not UTF-8.
    pub fn encode_text(&self, text: &[u8]) -> Result<Vec<u32>> {
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let ids = self.tokenizer()?.encode_bytes(text, options);
        ids.map_err(Error::tokenizer(self.path()))
    }

    pub(crate) fn vector_program(
        &self,
        mut spec: ModelSpec,
        limits: &Limits,
        build: &BuildOptions,
        (asked, beside_text): (Option<Pooling>, bool),
    ) -> Result<(Program, VectorShape)> {
        let pooling = self.pooling(&spec, asked)?;
        let (name, kind) = pooling.output();
        spec.main.head.pool = kind;
        let mut build = build.clone();
        let role = if beside_text && spec.main.head.output.is_some() {
            build.vectors = Some(name.to_owned());
            PlanRole::Embed
        } else {
            build.outputs = vec![name.to_owned()];
            PlanRole::Main
        };
        let program = self.program_of(&spec, limits, &build)?;
        let (_, plan) = program.plan(role).expect("it was built");
        let value = plan.output(name);
        let value = value.expect("the plan has what it was built for");
        let shape = VectorShape {
            pooling,
            role,
            width: plan.value(value).shape.width(),
            chunked: chunked(&spec, pooling),
        };
        Ok((program, shape))
    }

    /// The pooling that was asked for, or the file's; where the file is silent, the mean of rows that see the whole
    /// text and the last of those that do not.
    fn pooling(&self, spec: &ModelSpec, asked: Option<Pooling>) -> Result<Pooling> {
        let file = || self.path().display().to_string();
        if spec.encoder.is_some() {
            let why = "an encoder–decoder's rows are not made for it";
            return Err(Error::NoVectors { file: file(), why });
        }
        let key = format!("{}.pooling_type", spec.arch);
        let number = self.metadata().uint(&key);
        let own = number.and_then(|n| Pooling::ALL.get(usize::try_from(n).ok()?));
        let usual = if spec.bidirectional {
            Pooling::Mean
        } else {
            Pooling::Last
        };
        let pooling = asked.unwrap_or(own.map_or(usual, |p| p.1));
        let can_rank = spec.main.head.classifier.is_some();
        if pooling == Pooling::Rank && !can_rank {
            let known: Vec<&str> = Pooling::ALL[..4].iter().map(|p| p.0).collect();
            return Err(Error::Pooling {
                file: file(),
                found: match asked {
                    Some(_) => format!("pooling '{}'", pooling.name()),
                    None => format!("pooling '{}' in {key}", pooling.name()),
                },
                known: known.join(", "),
                why: "the model has no classifier",
            });
        }
        Ok(pooling)
    }
}

/// Whether a text may be fed in several steps.
fn chunked(spec: &ModelSpec, pooling: Pooling) -> bool {
    let classifier = spec.main.head.classifier.as_ref();
    let last_alone = match pooling {
        Pooling::None | Pooling::Last => true,
        Pooling::Mean | Pooling::Cls => false,
        Pooling::Rank => classifier.is_some_and(|c| c.pool == PoolKind::Last),
    };
    last_alone && !spec.bidirectional
}

impl OpenOptions {
    /// These options for vectors of these texts: as much context as they need, and steps of several short texts or
    /// of one that is longer than the rows chosen. The context, where one was chosen, is the longest text that is let
    /// through.
    ///
    /// # Errors
    /// A pooling that the model does not have; a text without tokens or longer than the context.
    pub fn for_texts(
        mut self,
        checkpoint: &Checkpoint,
        pooling: Option<Pooling>,
        texts: &[Vec<u32>],
    ) -> Result<Self> {
        let trained = checkpoint.trained_ctx().filter(|&n| n > 0);
        let limit = self.ctx.map(NonZeroU32::get).or(trained);
        let limit = limit.unwrap_or(DEFAULT_CTX) as usize;
        check(checkpoint, texts, limit)?;
        let longest = texts.iter().map(Vec::len).max().unwrap_or(1);
        let spec = checkpoint.spec(longest as u32)?;
        let pooling = checkpoint.pooling(&spec, pooling)?;
        let shared = texts
            .iter()
            .map(Vec::len)
            .sum::<usize>()
            .clamp(1, self.rows.max(1) as usize);
        let rows = if chunked(&spec, pooling) {
            shared
        } else {
            shared.max(longest)
        };
        // A cache is as large as the context times the sequences, whatever the texts are.
        let seqs = if spec.bidirectional {
            SHARED_TEXTS
        } else {
            (rows / longest).clamp(1, SHARED_TEXTS)
        };
        self.purpose = Purpose::Vectors(Some(pooling));
        self.ctx = NonZeroU32::new(longest as u32);
        self.rows = rows as u32;
        self.seqs = seqs.min(texts.len().max(1)) as u32;
        self.logit_rows = self.seqs;
        self.no_prefix_cache = true;
        Ok(self)
    }
}

/// Refuses texts that are empty or do not fit; texts count from 1 in what people read.
fn check(checkpoint: &Checkpoint, texts: &[Vec<u32>], limit: usize) -> Result<()> {
    let file = || checkpoint.path().display().to_string();
    for (text, tokens) in texts.iter().map(Vec::len).enumerate() {
        let text = text + 1;
        if tokens == 0 {
            return Err(Error::EmptyText { file: file(), text });
        }
        if tokens > limit {
            return Err(Error::TextTooLong {
                file: file(),
                text,
                tokens,
                limit,
            });
        }
    }
    Ok(())
}

impl Model {
    /// The vector of each text, in order: `[width]`, and `[tokens, width]` without pooling. They are not normalised.
    ///
    /// # Errors
    /// A model that was opened for text; a text that is empty or does not fit, see [`OpenOptions::for_texts`].
    pub fn embed(&mut self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
        let shape = self.vector_shape()?;
        let limits = *self.limits();
        let limit = if shape.chunked {
            limits.ctx
        } else {
            limits.ctx.min(limits.rows)
        };
        check(&self.checkpoint, texts, limit as usize)?;
        let vectors = self.read_all(texts, shape)?;
        let broken = |v: &Vec<f32>| v.iter().any(|x| !x.is_finite());
        match vectors.iter().position(broken) {
            Some(text) => Err(Error::NotANumber {
                file: self.checkpoint.path().display().to_string(),
                text: text + 1,
            }),
            None => Ok(vectors),
        }
    }

    /// Columns of a vector.
    ///
    /// # Errors
    /// A model that was opened for text.
    pub fn vector_width(&self) -> Result<usize> {
        Ok(self.vector_shape()?.width)
    }

    /// How its vectors are pooled.
    ///
    /// # Errors
    /// A model that was opened for text.
    pub fn pooling(&self) -> Result<Pooling> {
        Ok(self.vector_shape()?.pooling)
    }

    fn vector_shape(&self) -> Result<VectorShape> {
        self.vectors.ok_or_else(|| Error::NoVectors {
            file: self.checkpoint.path().display().to_string(),
            why: "it was opened for text",
        })
    }

    fn read_all(&mut self, texts: &[Vec<u32>], shape: VectorShape) -> Result<Vec<Vec<f32>>> {
        let mut vectors = vec![Vec::new(); texts.len()];
        let (mut asked, mut next) = (Vec::new(), 0);
        let most = 2 * self.limits().seqs as usize;
        loop {
            while next < texts.len() && asked.len() < most {
                let id = self
                    .engine
                    .submit_read(shape.request(texts[next].clone()))?;
                asked.push((id, next));
                next += 1;
            }
            if asked.is_empty() {
                return Ok(vectors);
            }
            self.engine.wait();
            let (engine, mut failed) = (&mut self.engine, None);
            asked.retain(|&(id, text)| {
                while let Some(kind) = engine.next_event(id) {
                    match kind {
                        EventKind::Values { values, .. } => shape.take(values, &mut vectors[text]),
                        EventKind::Finished { .. } => return false,
                        EventKind::Failed(error) => {
                            failed = Some(error);
                            return false;
                        }
                        EventKind::Prompt { .. } | EventKind::Token { .. } => {}
                    }
                }
                true
            });
            if let Some(error) = failed {
                asked.iter().for_each(|a| self.engine.abandon(a.0));
                return Err(error.into());
            }
        }
    }
}

impl VectorShape {
    /// Asks for the vector of a text.
    pub(crate) fn request(self, text: Vec<u32>) -> ReadRequest {
        ReadRequest {
            whole: !self.chunked,
            ..ReadRequest::new(text, self.role, self.pooling.output().0)
        }
    }

    /// Takes the values of a step: rows are added up, a pooled vector replaces that of an earlier chunk.
    fn take(&self, values: Vec<f32>, vector: &mut Vec<f32>) {
        match self.pooling {
            Pooling::None => vector.extend(values),
            _ => *vector = values,
        }
    }
}

/// Scales a vector to length 1; zeros stay.
pub fn normalize(vector: &mut [f32]) {
    let sum: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let scale = if sum > 0.0 {
        (1.0 / sum.sqrt()) as f32
    } else {
        0.0
    };
    vector.iter_mut().for_each(|x| *x *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normalised_vector_has_length_one() {
        let mut v = [3.0, -4.0];
        normalize(&mut v);
        assert_eq!(v, [0.6, -0.8]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
    }

    #[test]
    fn poolings_have_the_numbers_of_files() {
        for (i, (name, pooling)) in Pooling::ALL.into_iter().enumerate() {
            assert_eq!(Pooling::from_name(name), Some(pooling));
            assert_eq!((pooling.name(), pooling as usize), (name, i));
        }
        assert_eq!(Pooling::from_name("max"), None);
    }
}
