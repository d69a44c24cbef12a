//! RWKV time mixes and the channel mix.

use tokkata_ir::spec::{BlockSpec, ChannelMixSpec, LowRank, Rwkv6Spec, Rwkv7Spec};
use tokkata_ir::{Act, Recipe, Scan, WeightId};

use super::Resolver;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{ChannelMixRule, Rwkv6Rule, Rwkv7Rule};

fn want(shape: &[u32]) -> Want<'_> {
    Want { shape, axes: &[] }
}

impl Resolver<'_> {
    fn head_size(&self, rule: Option<&crate::schema::Rule>) -> Result<u32, ArchError> {
        let dim = self.size_of(rule, "wkv.head_size")?;
        if dim == 0 || !self.spec.n_embd.is_multiple_of(dim) {
            let what = format!("heads of {dim} columns do not divide {}", self.spec.n_embd);
            return Err(ArchError::Rule {
                rule: self.context("wkv.head_size"),
                what,
            });
        }
        Ok(dim)
    }

    /// Static mixes: rows of one tensor, or one tensor each.
    fn lerps(&mut self, fused: &str, split: &[&str]) -> Result<Vec<WeightId>, ArchError> {
        let d = self.spec.n_embd;
        if self.find(fused).is_none() {
            return split.iter().map(|n| self.weight(n, want(&[d]))).collect();
        }
        let n = self
            .find(fused)
            .map_or(0, |(_, s)| s.iter().product::<usize>() / d as usize) as u32;
        let all = self.weight(fused, want(&[n, d]))?;
        let (of, name) = (
            self.spec.weights[all.index()].recipe.clone(),
            self.spec.weights[all.index()].name.clone(),
        );
        let site = self.site(fused);
        let row = |i| Recipe::Rows {
            of: Box::new(of.clone()),
            start: i,
            len: 1,
        };
        Ok((0..n)
            .map(|i| self.define(&format!("{name}[{i}]"), row(i), site.clone(), want(&[d])))
            .collect())
    }

    pub(crate) fn rwkv6(&mut self, r: &Rwkv6Rule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let dim = self.head_size(r.head_dim.as_ref())?;
        let mix = self.size_of(r.mix_rank.as_ref(), "time_mix_extra_dim")?;
        let decay = self.size_of(r.decay_rank.as_ref(), "time_decay_extra_dim")?;
        let heads = d / dim;
        let kv_heads = self.size_of(r.kv_heads.as_ref(), &heads.to_string())?;
        let gla = r.gla && self.find("time_mix_first").is_none();
        let scan = if gla {
            Scan::Gla {
                head_dim: dim,
                scale: 1.0 / (dim as f32).sqrt(),
            }
        } else {
            Scan::Wkv6 {
                head_dim: dim,
                first: self.weight("time_mix_first", want(&[heads, dim]))?,
            }
        };
        let split = ["w", "k", "v", "r", "g"].map(|n| format!("time_mix_lerp_{n}"));
        let split: Vec<&str> = split.iter().map(String::as_str).collect();
        let spec = Rwkv6Spec {
            head_dim: dim,
            shift: self.state(d),
            slot: self.state(d * dim),
            lerp_x: self.weight("time_mix_lerp_x", want(&[d]))?,
            lerps: self.lerps("time_mix_lerp_fused", &split)?,
            w1: self.plain("time_mix_w1", [5 * mix, d])?,
            w2: self.weight("time_mix_w2", want(&[5, d, mix]))?,
            decay: self.weight("time_mix_decay", want(&[d]))?,
            decay_w1: self.plain("time_mix_decay_w1", [decay, d])?,
            decay_w2: self.plain("time_mix_decay_w2", [d, decay])?,
            r: self.proj("time_mix_receptance", want(&[d, d]))?,
            k: self.proj("time_mix_key", want(&[kv_heads * dim, d]))?,
            v: self.proj("time_mix_value", want(&[kv_heads * dim, d]))?,
            g: self.proj("time_mix_gate", want(&[d, d]))?,
            gate_act: if gla { Act::Sigmoid } else { Act::Silu },
            scale_k: gla,
            kv_heads,
            scan,
            out_norm: if gla {
                None
            } else {
                self.wkv_norm("time_mix_ln", heads, dim)?
            },
            out: self.proj("time_mix_output", want(&[d, d]))?,
        };
        Ok(BlockSpec::Rwkv6(Box::new(spec)))
    }

    pub(crate) fn rwkv7(&mut self, r: &Rwkv7Rule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let dim = self.head_size(r.head_dim.as_ref())?;
        let heads = d / dim;
        let kv_heads = self.size_of(r.kv_heads.as_ref(), &heads.to_string())?;
        let first = self.layer_index() == 0;
        if first {
            ["v0", "v1", "v2"]
                .iter()
                .for_each(|n| self.ignore(&format!("time_mix_{n}.weight")));
        }
        let gate_rank = self.find("time_mix_g1").map(|(_, s)| s[0] as u32);
        let g = match gate_rank {
            Some(rank) => Some((
                self.plain("time_mix_g1", [rank, d])?,
                self.plain("time_mix_g2", [d, rank])?,
            )),
            None => None,
        };
        let spec = Rwkv7Spec {
            head_dim: dim,
            shift: self.state(d),
            slot: self.state(d * dim),
            lerps: self.lerps("time_mix_lerp_fused", &[])?,
            w: self.low_rank_base("w", "attention.decay_lora_rank")?,
            a: self.low_rank_base("a", "attention.iclr_lora_rank")?,
            v_mix: match first {
                true => None,
                false => Some(self.low_rank_base("v", "attention.value_residual_mix_lora_rank")?),
            },
            g,
            k_k: self.weight("time_mix_k_k", want(&[d]))?,
            k_a: self.weight("time_mix_k_a", want(&[d]))?,
            r_k: self.weight("time_mix_r_k", want(&[d]))?,
            r: self.proj("time_mix_receptance", want(&[d, d]))?,
            k: self.proj("time_mix_key", want(&[kv_heads * dim, d]))?,
            v: self.proj("time_mix_value", want(&[kv_heads * dim, d]))?,
            kv_heads,
            out_norm: self.wkv_norm("time_mix_ln", heads, dim)?,
            out: self.proj("time_mix_output", want(&[d, d]))?,
        };
        Ok(BlockSpec::Rwkv7(Box::new(spec)))
    }

    fn low_rank_base(&mut self, name: &str, rank: &str) -> Result<LowRank, ArchError> {
        let d = self.spec.n_embd;
        let rank = self.dim(rank)?;
        Ok(LowRank {
            base: self.weight(&format!("time_mix_{name}0"), want(&[d]))?,
            down: self.plain(&format!("time_mix_{name}1"), [rank, d])?,
            up: self.plain(&format!("time_mix_{name}2"), [d, rank])?,
        })
    }

    pub(crate) fn channel_mix(&mut self, r: &ChannelMixRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let f = self.size_of(r.width.as_ref(), "n_ff")?;
        let receptance = match r.receptance {
            true => Some(self.proj("channel_mix_receptance", want(&[d, d]))?),
            false => None,
        };
        let lerp_r = match r.receptance {
            true => Some(self.weight("channel_mix_lerp_r", want(&[d]))?),
            false => None,
        };
        let spec = ChannelMixSpec {
            shift: self.state(d),
            lerp_k: self.weight("channel_mix_lerp_k", want(&[d]))?,
            lerp_r,
            key: self.proj("channel_mix_key", want(&[f, d]))?,
            value: self.proj("channel_mix_value", want(&[d, f]))?,
            receptance,
        };
        Ok(BlockSpec::ChannelMix(Box::new(spec)))
    }
}
