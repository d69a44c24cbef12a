//! Softmax attention of one layer.

use tokkata_ir::op::BucketBias;
use tokkata_ir::spec::{AttentionSpec, BlockSpec, KvPlace, OutGate, Proj, Qkv, Temperature};
use tokkata_ir::{Axis, CacheKind, ConstData, Mask, Recipe, SlotDef, SlotId, WeightId};

use super::indexer::Served;
use super::norm::Normed;
use super::weights::Want;
use super::{Resolver, Side};
use crate::error::ArchError;
use crate::schema::{AttentionRule, NormRule, Rule};

/// Sizes of one layer's attention.
#[derive(Clone, Copy)]
struct Heads {
    n: u32,
    kv: u32,
    dim_k: u32,
    dim_v: u32,
}

fn name(given: Option<&String>, usual: &str) -> String {
    given.cloned().unwrap_or_else(|| usual.to_owned())
}

impl Resolver<'_> {
    pub(crate) fn attention(
        &mut self,
        rule: &AttentionRule,
        cross: bool,
    ) -> Result<BlockSpec, ArchError> {
        let h = self.heads(rule)?;
        let kv_layer = self.kv_layer(rule)?;
        let shared = kv_layer != self.layer_index();
        if shared {
            self.ignore_key_norms(rule);
        }
        let qkv = self.qkv(rule, h, shared)?;
        let rope = if cross { None } else { self.rope()? };
        if let Some(rope) = &rope {
            self.check_rope(rope, h.dim_k)?;
        }
        let out_name = name(rule.out.as_ref(), "attn_output");
        let out = self.out_proj(rule, &out_name, h)?;
        let mask = self.mask(rule)?;
        let spec = AttentionSpec {
            n_heads: h.n,
            n_kv_heads: h.kv,
            dim_k: h.dim_k,
            dim_v: h.dim_v,
            q_gate: rule.q_gate,
            clamp: self.optional(rule.clamp.as_ref())?,
            q_norm: self.head_norm(
                rule.q_norm.as_ref(),
                Normed {
                    runs: h.n,
                    width: h.dim_k,
                },
            )?,
            k_norm: if shared {
                None
            } else {
                self.head_norm(
                    rule.k_norm.as_ref(),
                    Normed {
                        runs: h.kv,
                        width: h.dim_k,
                    },
                )?
            },
            v_norm: if shared {
                None
            } else {
                self.head_norm(
                    rule.v_norm.as_ref(),
                    Normed {
                        runs: h.kv,
                        width: h.dim_v,
                    },
                )?
            },
            rope,
            scale: self.number_of(rule.scale.as_ref(), &format!("1 / sqrt({})", h.dim_k))? as f32,
            cap: self.optional(rule.cap.as_ref())?,
            sinks: self.sinks(rule, h.n)?,
            alibi: self.alibi(rule, h.n)?,
            bucket: self.bucket(rule, h.n)?,
            mask: if cross { Mask::Full } else { mask },
            temperature: self.temperature(
                rule.temperature.as_ref(),
                rule.temperature_length.as_ref(),
                rule.temperature_offset.as_ref(),
            )?,
            gate: self.out_gate(rule, h)?,
            sub_norm: self.norm_opt(rule.sub_norm.as_ref(), Normed::row(h.n * h.dim_v))?,
            out,
            out_scale: self.number_of(rule.out_scale.as_ref(), "1")? as f32,
            kv: self.kv_place(mask, h, kv_layer, cross)?,
            reads: self.reads(Served {
                kv_heads: h.kv,
                rank: None,
            })?,
            qkv,
        };
        Ok(BlockSpec::Attention(Box::new(spec)))
    }

    fn heads(&self, rule: &AttentionRule) -> Result<Heads, ArchError> {
        let n = self.size_of(rule.heads.as_ref(), "n_head")?;
        let kv = self.size_of(rule.kv_heads.as_ref(), "nz(n_head_kv) ?? n_head")?;
        let dim_k = self.size_of(rule.dim_k.as_ref(), "head_dim")?;
        let dim_v = self.size_of(rule.dim_v.as_ref(), "head_dim_v")?;
        if n == 0 || kv == 0 || n % kv != 0 || dim_k == 0 || dim_v == 0 {
            let what = format!(
                "{n} heads of {dim_k} over {kv} key heads; heads must be a multiple of key heads"
            );
            return Err(ArchError::Rule {
                rule: self.context("attention"),
                what,
            });
        }
        self.fit("attention", &[n, dim_k])?;
        self.fit("attention", &[n, dim_v])?;
        Ok(Heads {
            n,
            kv,
            dim_k,
            dim_v,
        })
    }

    /// Norms of keys that a layer does not compute.
    fn ignore_key_norms(&self, rule: &AttentionRule) {
        for norm in [&rule.k_norm, &rule.v_norm].into_iter().flatten() {
            let tensor = match norm {
                NormRule::Name(name) => Some(name),
                NormRule::Full(table) => table.tensor.as_ref(),
            };
            if let Some(tensor) = tensor {
                self.ignore(&format!("{tensor}.weight"));
            }
        }
    }

    pub(crate) fn check_rope(
        &self,
        rope: &tokkata_ir::spec::RopeSpec,
        dim_k: u32,
    ) -> Result<(), ArchError> {
        let pairs = self.spec.consts[rope.freqs.index()].f32s().len() as u32;
        if rope.offset + 2 * pairs <= dim_k {
            return Ok(());
        }
        let what = format!(
            "{} columns from {} do not fit a head of {dim_k}",
            2 * pairs,
            rope.offset
        );
        Err(ArchError::Rule {
            rule: self.context("rope.dims"),
            what,
        })
    }

    fn qkv(&mut self, rule: &AttentionRule, h: Heads, shared: bool) -> Result<Qkv, ArchError> {
        let fused = name(rule.fused.as_ref(), "attn_qkv");
        let form = self.word(rule.qkv.as_ref(), "auto")?;
        let use_fused = match form.as_str() {
            "auto" => self.find(&fused).is_some(),
            "fused" => true,
            "split" => false,
            other => return Err(self.bad_word("attention.qkv", other)),
        };
        if use_fused {
            self.fused_qkv(rule, &fused, h)
        } else {
            self.split_qkv(rule, h, shared)
        }
    }

    fn fused_qkv(&mut self, rule: &AttentionRule, fused: &str, h: Heads) -> Result<Qkv, ArchError> {
        let parts = [h.n * h.dim_k, h.kv * h.dim_k, h.kv * h.dim_v];
        let n: u32 = parts.iter().sum();
        let d = self.size_of(rule.width.as_ref(), "n_embd")?;
        let mut proj = self.biased(
            rule,
            fused,
            Want {
                shape: &[n, d],
                axes: &[Axis::Heads, Axis::Embd],
            },
        )?;
        if proj.bias.is_none() {
            proj.bias = self.joined_bias(rule, parts)?;
        }
        self.required_bias(rule, &proj, fused, n)?;
        Ok(Qkv::Fused(proj))
    }

    /// Separate biases beside a fused weight.
    fn joined_bias(
        &mut self,
        rule: &AttentionRule,
        parts: [u32; 3],
    ) -> Result<Option<WeightId>, ArchError> {
        let names = [
            name(rule.q.as_ref(), "attn_q"),
            name(rule.k.as_ref(), "attn_k"),
            name(rule.v.as_ref(), "attn_v"),
        ];
        let prefix = self.layer_prefix();
        let full: Vec<String> = names.iter().map(|n| format!("{prefix}{n}.bias")).collect();
        if full.iter().any(|n| self.view.tensor(n).is_none()) {
            return Ok(None);
        }
        let mut recipes = Vec::new();
        for (n, len) in full.iter().zip(parts) {
            let id = self
                .exact(
                    n,
                    Want {
                        shape: &[len],
                        axes: &[],
                    },
                )?
                .expect("just found");
            recipes.push(self.spec.weights[id.index()].recipe.clone());
        }
        let site = self.site("attn_qkv");
        let want = Want {
            shape: &[parts.iter().sum()],
            axes: &[],
        };
        Ok(Some(self.define(
            &format!("{prefix}attn_qkv.bias (joined)"),
            Recipe::Concat(recipes),
            site,
            want,
        )))
    }

    fn split_qkv(
        &mut self,
        rule: &AttentionRule,
        h: Heads,
        shared: bool,
    ) -> Result<Qkv, ArchError> {
        let d = self.size_of(rule.width.as_ref(), "n_embd")?;
        let q_rows = h.n * h.dim_k * if rule.q_gate { 2 } else { 1 };
        let (q, k, v) = (
            name(rule.q.as_ref(), "attn_q"),
            name(rule.k.as_ref(), "attn_k"),
            name(rule.v.as_ref(), "attn_v"),
        );
        let q = self.biased(
            rule,
            &q,
            Want {
                shape: &[q_rows, d],
                axes: &[Axis::Heads, Axis::Embd],
            },
        )?;
        if shared {
            for part in ["weight", "bias", "scale"] {
                self.ignore(&format!("{k}.{part}"));
                self.ignore(&format!("{v}.{part}"));
            }
            return Ok(Qkv::Split {
                q,
                k: None,
                v: None,
            });
        }
        let want = Want {
            shape: &[h.kv * h.dim_k, d],
            axes: &[Axis::KvHeads, Axis::Embd],
        };
        let k = Some(self.biased(rule, &k, want)?);
        let want = Want {
            shape: &[h.kv * h.dim_v, d],
            axes: &[Axis::KvHeads, Axis::Embd],
        };
        let v = if rule.v_from_k && self.find(&v).is_none() {
            None
        } else {
            Some(self.biased(rule, &v, want)?)
        };
        Ok(Qkv::Split { q, k, v })
    }

    fn biased(
        &mut self,
        rule: &AttentionRule,
        base: &str,
        want: Want<'_>,
    ) -> Result<Proj, ArchError> {
        let proj = match self.word(rule.bias.as_ref(), "optional")?.as_str() {
            "none" => self.proj_plain(base, want)?,
            "ignore" => {
                self.ignore(&format!("{base}.bias"));
                self.proj_plain(base, want)?
            }
            "optional" | "required" => self.proj(base, want)?,
            other => return Err(self.bad_word("attention.bias", other)),
        };
        if base != name(rule.fused.as_ref(), "attn_qkv") {
            self.required_bias(rule, &proj, base, want.shape[0])?;
        }
        Ok(proj)
    }

    fn required_bias(
        &self,
        rule: &AttentionRule,
        proj: &Proj,
        base: &str,
        n: u32,
    ) -> Result<(), ArchError> {
        let required = self.word(rule.bias.as_ref(), "optional")? == "required";
        if required && proj.bias.is_none() {
            let name = format!("{}{base}.bias", self.layer_prefix());
            return Err(ArchError::MissingTensor {
                name,
                shape: vec![n],
            });
        }
        Ok(())
    }

    fn out_proj(&mut self, rule: &AttentionRule, out: &str, h: Heads) -> Result<Proj, ArchError> {
        let want = Want {
            shape: &[self.spec.n_embd, h.n * h.dim_v],
            axes: &[Axis::Embd, Axis::Heads],
        };
        if rule.ignore_out_bias {
            self.ignore(&format!("{out}.bias"));
            return self.proj_plain(out, want);
        }
        self.proj(out, want)
    }

    fn kv_layer(&self, rule: &AttentionRule) -> Result<u32, ArchError> {
        let own = self.layer_index();
        let layer = rule
            .kv_from
            .as_ref()
            .map_or(Ok(own), |r| self.size_of(Some(r), "0"))?;
        if layer > own {
            let what = format!("layer {own} cannot read keys of the later layer {layer}");
            return Err(ArchError::Rule {
                rule: self.context("attention.kv_from"),
                what,
            });
        }
        Ok(layer)
    }

    pub(crate) fn mask(&self, rule: &AttentionRule) -> Result<Mask, ArchError> {
        let both = match &rule.bidirectional {
            Some(r) => self.truth(r)?,
            None => self.spec.bidirectional || self.side.get() == Side::Encoder,
        };
        let size = self.size_of(self.desc.window.size.as_ref(), "window_size")?;
        let kind = self.word(self.desc.window.kind.as_ref(), "window")?;
        if !self.truth(&Rule::of("swa"))? {
            return Ok(if both { Mask::Full } else { Mask::Causal });
        }
        match kind.as_str() {
            "window" => Ok(Mask::Window(size)),
            "chunk" => Ok(Mask::Chunk(size)),
            "symmetric" => Ok(Mask::Symmetric(size)),
            other => Err(self.bad_word("window.kind", other)),
        }
    }

    fn kv_place(
        &mut self,
        mask: Mask,
        h: Heads,
        layer: u32,
        cross: bool,
    ) -> Result<KvPlace, ArchError> {
        let slot = SlotDef::Kv {
            n_kv_heads: h.kv,
            dim_k: h.dim_k,
            dim_v: Some(h.dim_v),
        };
        if cross {
            return Ok(KvPlace::Cross(self.spec.add_slot(CacheKind::Cross, slot)));
        }
        if self.spec.bidirectional || self.side.get() == Side::Encoder {
            return Ok(KvPlace::None);
        }
        if layer != self.layer_index() {
            return self.shared_slot(layer, &slot).map(KvPlace::Shared);
        }
        Ok(KvPlace::Own(self.own_slot(mask, slot)))
    }

    pub(crate) fn own_slot(&mut self, mask: Mask, slot: SlotDef) -> SlotId {
        let kind = match mask {
            Mask::Window(n) | Mask::Chunk(n) => CacheKind::Window(n),
            Mask::Causal | Mask::Full | Mask::Symmetric(_) => CacheKind::Full,
        };
        let id = self.spec.add_slot(kind, slot);
        self.kv_slots.insert(self.layer_index(), id);
        id
    }

    fn shared_slot(&self, layer: u32, wanted: &SlotDef) -> Result<SlotId, ArchError> {
        let wrong = |what: String| ArchError::Rule {
            rule: self.context("attention.kv_from"),
            what,
        };
        let found = self.kv_slots.get(&layer).copied();
        let id = found
            .ok_or_else(|| wrong(format!("layer {layer} has no keys and values of its own")))?;
        let group = &self.spec.groups[id.group.index()];
        match &group.slots[id.slot as usize] {
            slot if slot == wanted => Ok(id),
            slot => Err(wrong(format!(
                "layer {layer} keeps {slot:?}, expected {wanted:?} as in the layer that reads it"
            ))),
        }
    }

    fn sinks(&mut self, rule: &AttentionRule, n: u32) -> Result<Option<WeightId>, ArchError> {
        let Some(tensor) = &rule.sinks else {
            return Ok(None);
        };
        let want = Want {
            shape: &[n],
            axes: &[Axis::Heads],
        };
        if rule.sinks_required {
            self.weight(tensor, want).map(Some)
        } else {
            self.weight_opt(tensor, want)
        }
    }

    /// Slopes of ALiBi with the power-of-two split.
    fn alibi(
        &mut self,
        rule: &AttentionRule,
        n: u32,
    ) -> Result<Option<tokkata_ir::ConstId>, ArchError> {
        let Some(bias) = self.optional(rule.alibi.as_ref())? else {
            return Ok(None);
        };
        let floor = 1u32 << n.ilog2();
        let m0 = 2f64.powf(-f64::from(bias) / f64::from(floor));
        let m1 = 2f64.powf(-f64::from(bias) / 2.0 / f64::from(floor));
        let slope = |h: u32| {
            let power = if h < floor {
                m0.powi(h as i32 + 1)
            } else {
                m1.powi(2 * (h - floor) as i32 + 1)
            };
            power as f32
        };
        Ok(Some(
            self.constant(ConstData::F32((0..n).map(slope).collect())),
        ))
    }

    /// T5's table; a layer without one takes layer 0's.
    fn bucket(&mut self, rule: &AttentionRule, n: u32) -> Result<Option<BucketBias>, ArchError> {
        let Some(tensor) = &rule.bucket else {
            return Ok(None);
        };
        let buckets = self.dim("attention.relative_buckets_count")?;
        let want = Want {
            shape: &[buckets, n],
            axes: &[Axis::Other, Axis::Heads],
        };
        let table = match self.weight_opt(tensor, want)? {
            Some(id) => id,
            None => {
                let layer = self.layer.replace(Some(0));
                let first = self.weight(tensor, want);
                self.layer.set(layer);
                first?
            }
        };
        let bidirectional = self.side.get() == Side::Encoder || self.spec.bidirectional;
        Ok(Some(BucketBias {
            table,
            buckets,
            max_distance: 128,
            bidirectional,
        }))
    }

    pub(crate) fn temperature(
        &self,
        coef: Option<&Rule>,
        length: Option<&Rule>,
        offset: Option<&Rule>,
    ) -> Result<Option<Temperature>, ArchError> {
        let Some(coef) = self.optional(coef)? else {
            return Ok(None);
        };
        let length = self.number_of(length, "n_ctx_orig")? as f32;
        let offset = self.number_of(offset, "0")? as f32;
        Ok(Some(Temperature {
            coef,
            length,
            offset,
        }))
    }

    fn out_gate(&mut self, rule: &AttentionRule, h: Heads) -> Result<Option<OutGate>, ArchError> {
        let Some(tensor) = &rule.gate else {
            return Ok(None);
        };
        let act = rule.gate_act.as_ref();
        self.gate_of(tensor, (h.n, h.dim_v), act, rule.gate_optional)
    }

    /// A gate per head or per column, by the tensor's rows.
    pub(crate) fn gate_of(
        &mut self,
        tensor: &str,
        (heads, dim): (u32, u32),
        act: Option<&crate::schema::Word>,
        optional: bool,
    ) -> Result<Option<OutGate>, ArchError> {
        let Some((_, shape)) = self.find(tensor) else {
            let name = format!("{}{tensor}.weight", self.layer_prefix());
            let missing = ArchError::MissingTensor {
                name,
                shape: vec![heads, self.spec.n_embd],
            };
            return if optional { Ok(None) } else { Err(missing) };
        };
        let rows = shape.iter().product::<usize>() / self.spec.n_embd as usize;
        let per_head = rows == heads as usize && dim != 1;
        let n = if per_head { heads } else { heads * dim };
        let proj = self.proj(
            tensor,
            Want {
                shape: &[n, self.spec.n_embd],
                axes: &[Axis::Heads, Axis::Embd],
            },
        )?;
        let act = self.act_named(&self.word(act, "sigmoid")?)?;
        Ok(Some(OutGate {
            proj,
            act,
            per_head,
        }))
    }
}
