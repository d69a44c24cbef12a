//! Mixers other than softmax attention and RWKV.

use tokkata_ir::spec::{
    BlockSpec, ConvSpec, DeltaDecay, DeltaInput, DeltaSpec, LightningSpec, MambaLayout, MambaSpec,
    MlaForm, MlaQuery, MlaSpec, NormSpec, Proj, ShortConvSpec, XParts,
};
use tokkata_ir::{Axis, CacheKind, ConstData, Fold, Recipe, Scan, SlotDef, SlotId, WeightId};

use super::Resolver;
use super::indexer::Served;
use super::norm::Normed;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{DeltaRule, MambaRule, MlaRule, NormRule, NormTable, Rule};

fn named(rule: Option<&NormRule>, usual: &str) -> NormRule {
    rule.cloned()
        .unwrap_or_else(|| NormRule::Name(usual.to_owned()))
}

fn want<'a>(shape: &'a [u32]) -> Want<'a> {
    Want { shape, axes: &[] }
}

impl Resolver<'_> {
    pub(crate) fn mixer(&mut self, name: &str) -> Result<BlockSpec, ArchError> {
        let desc = self.desc;
        match name {
            "mla" => self.mla(&desc.mla),
            "mamba" => self.mamba(&desc.mamba),
            "delta" => self.delta(&desc.delta),
            "short_conv" => self.short_conv(),
            "lightning" => self.lightning(),
            "summary" => self.summary(&desc.summary),
            "rwkv6" => self.rwkv6(&desc.rwkv6),
            "rwkv7" => self.rwkv7(&desc.rwkv7),
            "channel_mix" => self.channel_mix(&desc.channel_mix),
            other => Err(self.bad_word("run", other)),
        }
    }

    pub(crate) fn state(&mut self, len: u32) -> SlotId {
        self.spec
            .add_slot(CacheKind::Recurrent, SlotDef::State { len })
    }

    pub(crate) fn sure_norm(&mut self, rule: &NormRule, of: Normed) -> Result<NormSpec, ArchError> {
        let found = self.norm(rule, of)?;
        found.ok_or_else(|| ArchError::Rule {
            rule: self.context("norm"),
            what: "the norm must exist".to_owned(),
        })
    }

    fn mla(&mut self, r: &MlaRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let n = self.size_of(r.heads.as_ref(), "n_head")?;
        let rank = self.size_of(r.kv_rank.as_ref(), "attention.kv_lora_rank")?;
        let dim_k = self.size_of(r.dim_k.as_ref(), "nz(attention.key_length_mla) ?? head_dim")?;
        let dim_v = self.size_of(
            r.dim_v.as_ref(),
            "nz(attention.value_length_mla) ?? head_dim_v",
        )?;
        let dim_rope = self.size_of(r.dim_rope.as_ref(), "n_rot")?;
        self.fit("mla", &[n, dim_k])?;
        self.fit("mla", &[n, dim_v])?;
        self.fit("mla", &[rank])?;
        let dim_nope = dim_k.checked_sub(dim_rope).ok_or_else(|| ArchError::Rule {
            rule: self.context("mla"),
            what: format!("{dim_rope} rotated columns do not fit a head of {dim_k}"),
        })?;
        let q = self.mla_query(r.q_rank.as_ref(), r.q_norm.as_ref(), n * dim_k)?;
        let kv_a = self.proj("attn_kv_a_mqa", want(&[rank + dim_rope, d]))?;
        let form = self.mla_form(n, rank, dim_nope, dim_v)?;
        let mask = self.mask(&crate::schema::AttentionRule::default())?;
        let slot = match form {
            MlaForm::Absorbed { .. } => SlotDef::Kv {
                n_kv_heads: 1,
                dim_k: rank + dim_rope,
                dim_v: None,
            },
            MlaForm::Expanded { .. } => SlotDef::Kv {
                n_kv_heads: n,
                dim_k,
                dim_v: Some(dim_v),
            },
        };
        let k_rope_norm = self.norm_opt(r.k_rope_norm.as_ref(), Normed::row(dim_rope))?;
        let served = Served {
            kv_heads: match form {
                MlaForm::Absorbed { .. } => 1,
                MlaForm::Expanded { .. } => n,
            },
            rank: self.query_rank(&q),
        };
        let spec = MlaSpec {
            n_heads: n,
            kv_rank: rank,
            dim_nope,
            dim_rope,
            dim_v,
            q,
            kv_a,
            kv_norm: self.sure_norm(
                &named(r.kv_norm.as_ref(), "attn_kv_a_norm"),
                Normed::row(rank),
            )?,
            k_rope_norm,
            form,
            rope: self.rope()?,
            scale: self.number_of(r.scale.as_ref(), &format!("1 / sqrt({dim_k})"))? as f32,
            temperature: self.temperature(
                r.temperature.as_ref(),
                r.temperature_length.as_ref(),
                r.temperature_offset.as_ref(),
            )?,
            mask,
            sinks: match &r.sinks {
                Some(t) if r.sinks_required => Some(self.weight(t, want(&[n]))?),
                Some(t) => self.weight_opt(t, want(&[n]))?,
                None => None,
            },
            gate: match &r.gate {
                Some(t) => self.gate_of(t, (n, dim_v), r.gate_act.as_ref(), r.gate_optional)?,
                None => None,
            },
            out: self.proj("attn_output", want(&[d, n * dim_v]))?,
            kv: tokkata_ir::spec::KvPlace::Own(self.own_slot(mask, slot)),
            reads: self.reads(served)?,
        };
        Ok(BlockSpec::Mla(Box::new(spec)))
    }

    pub(crate) fn mla_query(
        &mut self,
        rank: Option<&Rule>,
        norm: Option<&NormRule>,
        rows: u32,
    ) -> Result<MlaQuery, ArchError> {
        let d = self.spec.n_embd;
        if self.find("attn_q_a").is_none() {
            return Ok(MlaQuery::Full(self.proj("attn_q", want(&[rows, d]))?));
        }
        let rank = self.size_of(rank, "attention.q_lora_rank")?;
        Ok(MlaQuery::LowRank {
            a: self.proj("attn_q_a", want(&[rank, d]))?,
            norm: self.sure_norm(&named(norm, "attn_q_a_norm"), Normed::row(rank))?,
            b: self.proj("attn_q_b", want(&[rows, rank]))?,
        })
    }

    /// Columns of the low rank that queries come from.
    pub(crate) fn query_rank(&self, q: &MlaQuery) -> Option<u32> {
        match q {
            MlaQuery::LowRank { a, .. } => Some(self.spec.weights[a.weight.index()].shape[0]),
            MlaQuery::Full(_) => None,
        }
    }

    fn mla_form(&mut self, n: u32, rank: u32, nope: u32, v: u32) -> Result<MlaForm, ArchError> {
        if self.find("attn_k_b").is_none() {
            return Ok(MlaForm::Expanded {
                kv_b: self.proj("attn_kv_b", want(&[n * (nope + v), rank]))?,
            });
        }
        Ok(MlaForm::Absorbed {
            k_b: self.weight("attn_k_b", want(&[n, rank, nope]))?,
            v_b: self.weight("attn_v_b", want(&[n, v, rank]))?,
        })
    }

    fn conv(&mut self, tensor: &str, channels: u32, kernel: u32) -> Result<ConvSpec, ArchError> {
        let weight = self.weight(tensor, want(&[channels, kernel]))?;
        let bias = self.bias(tensor, channels)?;
        let slot = Some(self.state(kernel.saturating_sub(1) * channels));
        Ok(ConvSpec {
            weight,
            bias,
            kernel,
            slot,
        })
    }

    fn mamba(&mut self, r: &MambaRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let second = self.size_of(r.version.as_ref(), "1")? == 2;
        let inner = self.size_of(r.inner.as_ref(), "d_inner")?;
        let state = self.size_of(r.state.as_ref(), "d_state")?;
        let rank = self.size_of(r.rank.as_ref(), "dt_rank")?;
        let groups = self.size_of(r.groups.as_ref(), "nz(n_group) ?? 1")?;
        let kernel = self.size_of(r.kernel.as_ref(), "d_conv")?;
        self.fit("mamba", &[groups.max(1), state])?;
        self.fit("mamba", &[state.max(1), inner])?;
        self.fit("mamba", &[rank])?;
        let heads = if second { rank } else { inner };
        if kernel == 0 || heads == 0 || inner % heads != 0 || groups == 0 || heads % groups != 0 {
            let what = format!("{inner} columns, {heads} heads, {groups} groups, {kernel} taps");
            return Err(ArchError::Rule {
                rule: self.context("mamba"),
                what,
            });
        }
        let layout = match self
            .word(r.layout.as_ref(), if second { "zxbcdt" } else { "xz" })?
            .as_str()
        {
            "xz" => MambaLayout::XZ,
            "zxbcdt" => MambaLayout::ZXbcDt,
            "head_zx" => MambaLayout::HeadZX,
            other => return Err(self.bad_word("mamba.layout", other)),
        };
        let whole = layout == MambaLayout::ZXbcDt;
        let extra = if whole { 2 * groups * state + heads } else { 0 };
        let channels = if whole {
            inner + 2 * groups * state
        } else {
            inner
        };
        let dt_rank = self.size_of(r.dt_rank.as_ref(), &rank.to_string())?;
        let [dt_norm, b_norm, c_norm] = self.dt_b_c_norms(r, [dt_rank, state, state])?;
        let input = self.proj("ssm_in", want(&[2 * inner + extra, d]))?;
        let conv = self.conv("ssm_conv1d", channels, kernel)?;
        let x_proj = if whole {
            None
        } else {
            Some(self.proj("ssm_x", want(&[dt_rank + 2 * state, inner]))?)
        };
        let dt_proj = if whole {
            None
        } else {
            Some(self.proj("ssm_dt", want(&[heads, dt_rank]))?)
        };
        let scan = self.mamba_scan(second, whole, [heads, inner, state, groups])?;
        let out_norm = match &r.out_norm {
            Some(rule) => self.grouped_norm(rule, inner, groups)?,
            None => None,
        };
        let spec = MambaSpec {
            input,
            layout,
            conv,
            x_proj,
            x_parts: if layout == MambaLayout::HeadZX {
                XParts::BCDt
            } else {
                XParts::DtBC
            },
            dt_proj,
            dt_norm,
            b_norm,
            c_norm,
            inner,
            heads,
            state,
            groups,
            dt_rank,
            scan,
            slot: self.state(state * inner),
            out_norm,
            out: self.proj("ssm_out", want(&[d, inner]))?,
        };
        Ok(BlockSpec::Mamba(Box::new(spec)))
    }

    fn mamba_scan(
        &mut self,
        second: bool,
        whole: bool,
        [heads, inner, state, groups]: [u32; 4],
    ) -> Result<Scan, ArchError> {
        if !second {
            let a = self.weight("ssm_a", want(&[inner, state]))?;
            return Ok(Scan::Mamba1 {
                state,
                a,
                d: self.weight("ssm_d", want(&[inner]))?,
            });
        }
        let dt_bias = if whole {
            self.bias("ssm_dt", heads)?
        } else {
            None
        };
        let a = self.weight("ssm_a", want(&[heads]))?;
        Ok(Scan::Mamba2 {
            heads,
            state,
            groups,
            a,
            d: self.weight("ssm_d", want(&[heads]))?,
            dt_bias,
        })
    }

    fn grouped_norm(
        &mut self,
        rule: &NormRule,
        inner: u32,
        groups: u32,
    ) -> Result<Option<NormSpec>, ArchError> {
        let mut table = match rule {
            NormRule::Name(n) => NormTable {
                tensor: Some(n.clone()),
                ..NormTable::default()
            },
            NormRule::Full(t) => t.clone(),
        };
        table.per = Some(crate::schema::Word::of("distinct"));
        self.norm(
            &NormRule::Full(table),
            Normed {
                runs: groups,
                width: inner / groups,
            },
        )
    }

    fn dt_b_c_norms(
        &mut self,
        r: &MambaRule,
        widths: [u32; 3],
    ) -> Result<[Option<NormSpec>; 3], ArchError> {
        let kind = self.word(r.dt_b_c_norm.as_ref(), "none")?;
        let mut out = [None, None, None];
        for (i, tensor) in ["ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"]
            .into_iter()
            .enumerate()
        {
            let table = match kind.as_str() {
                "none" => return Ok(out),
                "weighted" => NormTable {
                    tensor: Some(tensor.to_owned()),
                    ..NormTable::default()
                },
                "weightless" => NormTable::default(),
                other => return Err(self.bad_word("mamba.dt_b_c_norm", other)),
            };
            out[i] = self.norm(&NormRule::Full(table), Normed::row(widths[i]))?;
        }
        Ok(out)
    }

    fn short_conv(&mut self) -> Result<BlockSpec, ArchError> {
        let desc = self.desc;
        let d = self.spec.n_embd;
        let kernel = self.size_of(desc.short_conv.kernel.as_ref(), "shortconv.l_cache")?;
        let input = self.proj("shortconv.in_proj", want(&[3 * d, d]))?;
        let mut conv = if self.truth_of(desc.short_conv.centred.as_ref(), "0")? {
            let weight = self.weight("shortconv.conv", want(&[d, kernel]))?;
            ConvSpec {
                weight,
                bias: None,
                kernel,
                slot: None,
            }
        } else {
            self.conv("shortconv.conv", d, kernel)?
        };
        conv.kernel = kernel;
        let out = self.proj("shortconv.out_proj", want(&[d, d]))?;
        Ok(BlockSpec::ShortConv(Box::new(ShortConvSpec {
            input,
            conv,
            out,
        })))
    }

    /// Decay per head, milder with every layer.
    fn lightning(&mut self) -> Result<BlockSpec, ArchError> {
        let desc = self.desc;
        let d = self.spec.n_embd;
        let heads = self.dim("n_head")?;
        let dim = self.dim("head_dim")?;
        self.fit("lightning", &[heads, dim, dim])?;
        let (il, layers) = (
            f64::from(self.layer_index()),
            self.number_of(None, "n_layers")?,
        );
        let base = 2f64.powf(-(2f64.powf(-(f64::from(heads).log2() - 3.0))));
        let fade = 1.0 - il / (layers - 1.0).max(1.0) + 1e-5;
        let slopes = (1..=heads)
            .map(|h| (base.powi(h as i32) * fade) as f32)
            .collect();
        let rule = named(desc.lightning.out_norm.as_ref(), "attn_norm_2");
        let spec = LightningSpec {
            heads,
            head_dim: dim,
            qkv: self.proj("attn_qkv", want(&[3 * heads * dim, d]))?,
            slopes: self.constant(ConstData::F32(slopes)),
            slot: self.state(heads * dim * dim),
            out_norm: self.sure_norm(&rule, Normed::row(heads * dim))?,
            gate: self.proj("attn_gate", want(&[heads * dim, d]))?,
            out: self.proj("attn_output", want(&[d, heads * dim]))?,
        };
        Ok(BlockSpec::Lightning(Box::new(spec)))
    }

    fn delta(&mut self, r: &DeltaRule) -> Result<BlockSpec, ArchError> {
        let flavour = self.word(r.flavour.as_ref(), "gdn")?;
        match flavour.as_str() {
            "gdn" => self.gdn(r),
            "kda" => self.kda(r),
            other => Err(self.bad_word("delta.flavour", other)),
        }
    }

    fn gdn(&mut self, r: &DeltaRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let k_heads = self.size_of(r.k_heads.as_ref(), "n_group")?;
        let v_heads = self.size_of(r.v_heads.as_ref(), "dt_rank")?;
        let dim_k = self.size_of(r.dim_k.as_ref(), "d_state")?;
        let dim_v = self.size_of(r.dim_v.as_ref(), "d_inner / dt_rank")?;
        let kernel = self.size_of(r.kernel.as_ref(), "d_conv")?;
        self.fit("delta", &[k_heads, dim_k])?;
        self.fit("delta", &[v_heads, dim_k.max(1), dim_v])?;
        let (keys, values) = (k_heads * dim_k, v_heads * dim_v);
        let grouped = self.find("attn_qkv").is_none();
        let qkv = match grouped {
            true => vec![self.proj("ssm_in", want(&[2 * keys + 2 * values, d]))?],
            false => vec![self.proj("attn_qkv", want(&[2 * keys + values, d]))?],
        };
        let z = match grouped {
            true => DeltaInput::Grouped,
            false => DeltaInput::Full(self.proj("attn_gate", want(&[values, d]))?),
        };
        let both = self.find("ssm_ba").is_some();
        let (alpha, beta) = match both {
            true => (
                DeltaInput::Grouped,
                self.proj("ssm_ba", want(&[2 * v_heads, d]))?,
            ),
            false => {
                let alpha = DeltaInput::Full(self.proj("ssm_alpha", want(&[v_heads, d]))?);
                (alpha, self.proj("ssm_beta", want(&[v_heads, d]))?)
            }
        };
        let scale = 1.0 / (dim_k as f32).sqrt();
        let spec = DeltaSpec {
            k_heads,
            v_heads,
            dim_k,
            dim_v,
            qkv,
            qkvz_grouped: grouped,
            convs: vec![self.conv("ssm_conv1d", 2 * keys + values, kernel)?],
            alpha,
            beta,
            beta_alpha_grouped: both,
            decay: DeltaDecay {
                a: self.weight("ssm_a", want(&[v_heads]))?,
                dt_bias: self.bias("ssm_dt", v_heads)?,
                lower_bound: None,
            },
            l2_eps: self.number_of(r.l2_eps.as_ref(), "attention.layer_norm_rms_epsilon")? as f32,
            scan: Scan::GatedDelta {
                k_heads,
                v_heads,
                dim_k,
                dim_v,
                tiled: r.tiled,
                scale,
            },
            slot: self.state(v_heads * dim_k * dim_v),
            z: Some(z),
            z_act: self.act_named(&self.word(r.z_act.as_ref(), "silu")?)?,
            out_norm: self.per_head_norm("ssm_norm", v_heads, dim_v)?,
            out: self.proj("ssm_out", want(&[d, values]))?,
        };
        Ok(BlockSpec::Delta(Box::new(spec)))
    }

    fn per_head_norm(
        &mut self,
        tensor: &str,
        runs: u32,
        width: u32,
    ) -> Result<NormSpec, ArchError> {
        let per = Some(crate::schema::Word::of("head"));
        let table = NormTable {
            tensor: Some(tensor.to_owned()),
            per,
            ..NormTable::default()
        };
        self.sure_norm(&NormRule::Full(table), Normed { runs, width })
    }

    fn kda(&mut self, r: &DeltaRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let heads = self.size_of(
            r.k_heads.as_ref(),
            "nz(n_head) ?? first('attention.head_count')",
        )?;
        let dim = self.size_of(r.dim_k.as_ref(), "kda.head_dim")?;
        let kernel = self.size_of(r.kernel.as_ref(), "d_conv")?;
        self.fit("delta", &[heads, dim, dim])?;
        let wide = heads * dim;
        let qkv = match self.find("attn_qkv").is_some() {
            true => vec![self.unbiased("attn_qkv", [3 * wide, d])?],
            false => ["attn_q", "attn_k", "attn_v"]
                .map(|n| self.unbiased(n, [wide, d]))
                .into_iter()
                .collect::<Result<_, _>>()?,
        };
        let convs = ["q", "k", "v"].map(|n| self.conv(&format!("ssm_conv1d_{n}"), wide, kernel));
        let convs = convs.into_iter().collect::<Result<_, _>>()?;
        let lower_bound = self.optional(r.lower_bound.as_ref())?;
        let spec = DeltaSpec {
            k_heads: heads,
            v_heads: heads,
            dim_k: dim,
            dim_v: dim,
            qkv,
            qkvz_grouped: false,
            convs,
            alpha: self.low_rank(["ssm_f_a", "ssm_f_b"], wide)?,
            beta: self.proj("ssm_beta", want(&[heads, d]))?,
            beta_alpha_grouped: false,
            decay: DeltaDecay {
                a: self.spread_heads("ssm_a", heads, dim, r.negative_a && lower_bound.is_some())?,
                dt_bias: self.bias("ssm_dt", wide)?,
                lower_bound,
            },
            l2_eps: self.number_of(r.l2_eps.as_ref(), "attention.layer_norm_rms_epsilon")? as f32,
            scan: Scan::GatedDelta {
                k_heads: heads,
                v_heads: heads,
                dim_k: dim,
                dim_v: dim,
                tiled: true,
                scale: 1.0 / (dim as f32).sqrt(),
            },
            slot: self.state(heads * dim * dim),
            z: Some(self.kda_gate(wide)?),
            z_act: self.act_named(&self.word(r.z_act.as_ref(), "sigmoid")?)?,
            out_norm: self.per_head_norm("ssm_norm", heads, dim)?,
            out: self.proj("attn_output", want(&[d, wide]))?,
        };
        Ok(BlockSpec::Delta(Box::new(spec)))
    }

    /// A projection whose bias, if the file has one, is not added.
    fn unbiased(&mut self, tensor: &str, shape: [u32; 2]) -> Result<Proj, ArchError> {
        self.ignore(&format!("{tensor}.bias"));
        self.proj_plain(tensor, want(&shape))
    }

    fn kda_gate(&mut self, wide: u32) -> Result<DeltaInput, ArchError> {
        if self.find("ssm_g").is_some() {
            return Ok(DeltaInput::Full(
                self.proj("ssm_g", want(&[wide, self.spec.n_embd]))?,
            ));
        }
        self.low_rank(["ssm_g_a", "ssm_g_b"], wide)
    }

    /// One map, or two through the rank that the first one's rows tell.
    fn low_rank(&mut self, [a, b]: [&str; 2], wide: u32) -> Result<DeltaInput, ArchError> {
        let d = self.spec.n_embd;
        if self.find(b).is_none() {
            return Ok(DeltaInput::Full(self.proj(a, want(&[wide, d]))?));
        }
        let rank = self.find(a).map_or(0, |(_, s)| s[0] as u32);
        Ok(DeltaInput::LowRank(
            self.proj(a, want(&[rank, d]))?,
            self.proj(b, want(&[wide, rank]))?,
        ))
    }

    /// One value per head, repeated over the head's columns, its sign perhaps turned.
    fn spread_heads(
        &mut self,
        tensor: &str,
        heads: u32,
        dim: u32,
        turned: bool,
    ) -> Result<WeightId, ArchError> {
        let id = self.weight(tensor, want(&[heads, 1]))?;
        let single = Recipe::Reshape {
            of: Box::new(self.spec.weights[id.index()].recipe.clone()),
            cols: 1,
        };
        let of = match turned {
            true => Box::new(Recipe::Map {
                of: Box::new(single),
                fold: Fold::MulConst(-1.0),
            }),
            false => Box::new(single),
        };
        let name = format!("{} (per column)", self.spec.weights[id.index()].name);
        let map = (0..heads * dim).map(|i| i / dim).collect();
        let site = self.site(tensor);
        let shape = [heads * dim, 1];
        Ok(self.define(
            &name,
            Recipe::Permute { of, map },
            site,
            Want {
                shape: &shape,
                axes: &[Axis::Heads],
            },
        ))
    }

    /// A group norm of a recurrence's output, with the epsilon RWKV fixes.
    pub(crate) fn wkv_norm(
        &mut self,
        tensor: &str,
        heads: u32,
        dim: u32,
    ) -> Result<Option<NormSpec>, ArchError> {
        let eps = Some(Rule::of("64e-5"));
        let (kind, per) = (
            Some(crate::schema::Word::of("layer")),
            Some(crate::schema::Word::of("distinct")),
        );
        let table = NormTable {
            tensor: Some(tensor.to_owned()),
            kind,
            eps,
            per,
            optional: true,
            ..NormTable::default()
        };
        self.norm(
            &NormRule::Full(table),
            Normed {
                runs: heads,
                width: dim,
            },
        )
    }

    /// A projection without sidecars or bias, such as a low-rank factor.
    pub(crate) fn plain(&mut self, tensor: &str, shape: [u32; 2]) -> Result<Proj, ArchError> {
        self.proj_plain(tensor, want(&shape))
    }
}
