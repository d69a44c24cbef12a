//! Attention over a window and summaries of what lies before.

use tokkata_ir::spec::{BlockSpec, CompressSpec, HistorySpec, NormSpec, SummarySpec};
use tokkata_ir::{Axis, CacheKind, NormKind, SlotDef, WeightId};

use super::Resolver;
use super::indexer::Served;
use super::norm::Normed;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{NormRule, SummaryRule};

fn want(shape: &[u32]) -> Want<'_> {
    Want { shape, axes: &[] }
}

fn vector(dim: u32) -> SlotDef {
    SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: dim,
        dim_v: None,
    }
}

impl Resolver<'_> {
    pub(crate) fn summary(&mut self, rule: &SummaryRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let n = self.size_of(rule.heads.as_ref(), "n_head")?;
        let dim = self.size_of(rule.dim.as_ref(), "head_dim")?;
        let groups = self.size_of(rule.groups.as_ref(), "attention.output_group_count")?;
        let rank = self.size_of(rule.out_rank.as_ref(), "attention.output_lora_rank")?;
        self.fit("summary", &[n, dim])?;
        self.fit("summary", &[groups, rank])?;
        if n == 0 || dim == 0 || groups == 0 || n % groups != 0 {
            return Err(self.bad_summary(format!("{n} heads of {dim} in {groups} groups")));
        }
        let Some(rope) = self.rope()? else {
            return Err(self.bad_summary("its vectors must be rotated".to_owned()));
        };
        self.check_rope(&rope, dim)?;
        let q = self.mla_query(rule.q_rank.as_ref(), None, n * dim)?;
        let mask = self.mask(&crate::schema::AttentionRule::default())?;
        let served = Served {
            kv_heads: 1,
            rank: self.query_rank(&q),
        };
        let norm = NormRule::Name("attn_kv_a_norm".to_owned());
        let spec = SummarySpec {
            n_heads: n,
            dim,
            q,
            q_norm: self.head_rms(dim)?,
            kv: self.proj("attn_kv", want(&[dim, d]))?,
            kv_norm: self.sure_norm(&norm, Normed::row(dim))?,
            rope,
            scale: 1.0 / (dim as f32).sqrt(),
            mask,
            sinks: self.weight("attn_sinks", want(&[n]))?,
            slot: self.own_slot(mask, vector(dim)),
            history: self.history(rule, dim, served)?,
            out_a: self.grouped(groups, rank, n / groups * dim)?,
            groups,
            out_b: self.proj("attn_output_b", want(&[d, groups * rank]))?,
        };
        Ok(BlockSpec::Summary(Box::new(spec)))
    }

    fn bad_summary(&self, what: String) -> ArchError {
        ArchError::Rule {
            rule: self.context("summary"),
            what,
        }
    }

    /// A norm of each head without a weight.
    fn head_rms(&self, dim: u32) -> Result<NormSpec, ArchError> {
        let eps = self.number_of(
            self.desc.norm.eps.as_ref(),
            "attention.layer_norm_rms_epsilon",
        )?;
        Ok(NormSpec {
            kind: NormKind::Rms,
            eps: eps as f32,
            width: dim,
            weight: None,
            bias: None,
        })
    }

    /// Summaries of the current layer, where it has them.
    fn history(
        &mut self,
        rule: &SummaryRule,
        dim: u32,
        served: Served,
    ) -> Result<Option<HistorySpec>, ArchError> {
        let ratio = self.size_of(rule.ratio.as_ref(), "0")?;
        if ratio == 0 {
            return Ok(None);
        }
        let overlap = self.truth_of(rule.overlap.as_ref(), "0")?;
        let wide = if overlap { 2 * dim } else { dim };
        let d = self.spec.n_embd;
        let norm = NormRule::Name("attn_compressor_norm".to_owned());
        Ok(Some(HistorySpec {
            kv: self.proj("attn_compressor_kv", want(&[wide, d]))?,
            compress: self.compress("attn_compressor", dim, (ratio, overlap))?,
            norm: self.sure_norm(&norm, Normed::row(dim))?,
            slot: self
                .spec
                .add_slot(CacheKind::Entries(ratio), vector_entry(dim)),
            reads: self.reads(served)?,
        }))
    }

    /// Scores by which runs of positions become one row; tensors begin with `base`.
    pub(crate) fn compress(
        &mut self,
        base: &str,
        dim: u32,
        (ratio, overlap): (u32, bool),
    ) -> Result<CompressSpec, ArchError> {
        let runs = if overlap { 2 } else { 1 };
        let wide = runs * dim;
        self.fit("compress", &[ratio, runs, dim])?;
        let def = SlotDef::Kv {
            n_kv_heads: 1,
            dim_k: wide,
            dim_v: Some(wide),
        };
        Ok(CompressSpec {
            ratio,
            overlap,
            scores: self.proj(&format!("{base}_gate"), want(&[wide, self.spec.n_embd]))?,
            ape: self.weight(&format!("{base}_ape"), want(&[ratio, wide]))?,
            slot: self.spec.add_slot(CacheKind::Window(runs * ratio), def),
        })
    }

    /// One matrix for each group of heads; files hold them one below the other.
    fn grouped(&mut self, groups: u32, rank: u32, columns: u32) -> Result<WeightId, ArchError> {
        let base = "attn_output_a";
        let stacked = self.find(base).is_some_and(|(_, shape)| shape.len() == 3);
        let shape = [groups, rank, columns];
        let axes = [Axis::Heads, Axis::Other, Axis::Other];
        let want = Want {
            shape: &shape,
            axes: &axes,
        };
        if stacked {
            return self.weight(base, want);
        }
        let flat = self.weight(
            base,
            Want {
                shape: &[groups * rank, columns],
                axes: &[],
            },
        )?;
        let def = &self.spec.weights[flat.index()];
        let (name, recipe) = (format!("{} (by group)", def.name), def.recipe.clone());
        let site = def.site.clone();
        Ok(self.define(&name, recipe, site, want))
    }
}

fn vector_entry(dim: u32) -> SlotDef {
    SlotDef::Kv {
        n_kv_heads: 1,
        dim_k: dim,
        dim_v: Some(0),
    }
}
