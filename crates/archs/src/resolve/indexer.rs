//! Indexers: what attention reads of the keys that its mask shows.

use tokkata_ir::spec::{CompressSpec, IndexerSpec, NormPlace, Reads, RopeSpec};
use tokkata_ir::{Axis, CacheKind, Pairing, SlotDef};

use super::Resolver;
use super::norm::Normed;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{IndexerRule, NormRule};

/// What an indexer must fit: its attention's key heads, and the columns of the low rank of its queries.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    pub(crate) kv_heads: u32,
    pub(crate) rank: Option<u32>,
}

impl Resolver<'_> {
    /// What chooses the keys that the current layer's attention reads.
    pub(crate) fn reads(&mut self, served: Served) -> Result<Reads, ArchError> {
        let desc = self.desc;
        let Some(rule) = &desc.indexer else {
            return Ok(Reads::All);
        };
        if !self.truth_of(rule.when.as_ref(), "1")? {
            return Ok(Reads::All);
        }
        if self.truth_of(rule.own.as_ref(), "1")? {
            self.chooses = true;
            return Ok(Reads::Own(Box::new(self.indexer(rule, served)?)));
        }
        if self.chooses {
            return Ok(Reads::Last);
        }
        Err(self.bad_indexer(
            "it reads what an earlier layer chose, but none before it chooses".to_owned(),
        ))
    }

    fn bad_indexer(&self, what: String) -> ArchError {
        ArchError::Rule {
            rule: self.context("indexer"),
            what,
        }
    }

    fn indexer(&mut self, rule: &IndexerRule, served: Served) -> Result<IndexerSpec, ArchError> {
        let n = self.size_of(rule.heads.as_ref(), "attention.indexer.head_count")?;
        let dim = self.size_of(rule.dim.as_ref(), "attention.indexer.key_length")?;
        let top_k = self.size_of(rule.top_k.as_ref(), "attention.indexer.top_k")?;
        let unit = self.size_of(rule.unit.as_ref(), "1")?;
        let local = self.size_of(rule.local.as_ref(), "0")?;
        if [n, dim, top_k, unit].contains(&0) || local > top_k {
            return Err(self.bad_indexer(format!(
                "{n} heads of {dim} choose {top_k} units of {unit} positions, {local} of them always"
            )));
        }
        self.fit("indexer", &[n, dim])?;
        let summed = rule.weights.as_deref() != Some("none");
        if !summed && n != served.kv_heads {
            let kv = served.kv_heads;
            return Err(self.bad_indexer(format!("{n} heads choose for {kv} key heads")));
        }
        let ratio = self.size_of(rule.ratio.as_ref(), "1")?;
        if ratio == 0 {
            return Err(self.bad_indexer("0 positions share a key".to_owned()));
        }
        // More units than the context has are all of them.
        let positions = unit.saturating_mul(ratio);
        let top_k = top_k.min(self.options.ctx.div_ceil(positions).max(local).max(1));
        let (q, k) = (
            named(rule.q.as_ref(), "indexer.attn_q_b"),
            named(rule.k.as_ref(), "indexer.attn_k"),
        );
        let cols = self.query_columns(rule, served)?;
        let k_norm = rule
            .k_norm
            .clone()
            .unwrap_or(NormRule::Name("indexer.k_norm".to_owned()));
        let key = Normed::row(dim);
        let d = self.spec.n_embd;
        Ok(IndexerSpec {
            n_heads: n,
            dim,
            q: self.proj(&q, want(&[n * dim, cols]))?,
            from_rank: !rule.from_input,
            q_norm: match &rule.q_norm {
                Some(norm) => self
                    .head_norm(
                        Some(norm),
                        Normed {
                            runs: n,
                            width: dim,
                        },
                    )?
                    .map(|n| n.norm),
                None => None,
            },
            k: self.proj(&k, want(&[if rule.overlap { 2 * dim } else { dim }, d]))?,
            k_norm: self.norm(&k_norm, key)?,
            compress: self.shared_key(rule, dim, ratio)?,
            rope: self.indexer_rope(rule, dim)?,
            weights: match summed {
                true => {
                    Some(self.proj(&named(rule.weights.as_ref(), "indexer.proj"), want(&[n, d]))?)
                }
                false => None,
            },
            scale: self.number_of(rule.scale.as_ref(), &format!("1 / sqrt({dim} * {n})"))? as f32,
            top_k,
            unit,
            local,
            tail: self.truth_of(rule.tail.as_ref(), "0")?,
            slot: self.spec.add_slot(
                CacheKind::Entries(ratio),
                SlotDef::Kv {
                    n_kv_heads: 1,
                    dim_k: dim,
                    dim_v: Some(0),
                },
            ),
        })
    }

    /// How the positions of a shared key become one, where keys are shared.
    fn shared_key(
        &mut self,
        rule: &IndexerRule,
        dim: u32,
        ratio: u32,
    ) -> Result<Option<(CompressSpec, NormPlace)>, ArchError> {
        if ratio == 1 {
            return Ok(None);
        }
        let compress = self.compress("indexer_compressor", dim, (ratio, rule.overlap))?;
        let place = match rule.norm_shared {
            true => NormPlace::After,
            false => NormPlace::Before,
        };
        Ok(Some((compress, place)))
    }

    fn query_columns(&self, rule: &IndexerRule, served: Served) -> Result<u32, ArchError> {
        if rule.from_input {
            return Ok(self.spec.n_embd);
        }
        let none = "its queries come from a low rank, which the attention's queries do not have";
        served.rank.ok_or_else(|| self.bad_indexer(none.to_owned()))
    }

    /// The block's rotation, at the indexer's own place.
    fn indexer_rope(
        &mut self,
        rule: &IndexerRule,
        dim: u32,
    ) -> Result<Option<RopeSpec>, ArchError> {
        let Some(mut rope) = self.rope()? else {
            return Ok(None);
        };
        match self.word(rule.pairing.as_ref(), "")?.as_str() {
            "" => {}
            "adjacent" => rope.pairing = Pairing::Adjacent,
            "halves" => rope.pairing = Pairing::Halves,
            other => return Err(self.bad_word("indexer.pairing", other)),
        }
        rope.offset = self.size_of(rule.offset.as_ref(), "0")?;
        let pairs = self.spec.consts[rope.freqs.index()].f32s().len() as u32;
        if rope.offset + 2 * pairs > dim {
            return Err(self.bad_indexer(format!(
                "{} rotated columns from {} do not fit keys of {dim}",
                2 * pairs,
                rope.offset
            )));
        }
        Ok(Some(rope))
    }
}

fn named(given: Option<&String>, usual: &str) -> String {
    given.cloned().unwrap_or_else(|| usual.to_owned())
}

fn want(shape: &[u32]) -> Want<'_> {
    Want {
        shape,
        axes: &[Axis::Other],
    }
}
