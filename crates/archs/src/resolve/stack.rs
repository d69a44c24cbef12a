//! Embedding, layers and head.

use tokkata_ir::spec::{
    BlockSpec, BranchSpec, ClassifierSpec, EmbedSpec, HeadSpec, LayerSpec, PerLayerEmbed,
    PerLayerInject, Proj, Skip, Source, StackSpec, StepSpec,
};
use tokkata_ir::{Act, Axis, PoolKind};

use super::norm::Normed;
use super::weights::Want;
use super::{Resolver, Side};
use crate::error::ArchError;
use crate::schema::{BranchRule, Descriptor, NormRule, StepRule};

/// How often a file's blocks may be run.
const MAX_LOOPS: usize = 64;

impl Resolver<'_> {
    pub(crate) fn stack(&mut self, side: Side) -> Result<StackSpec, ArchError> {
        let frames = match (side, &self.desc.frames) {
            (Side::Encoder, Some(rule)) => Some(self.frames(rule)?),
            _ => None,
        };
        let embed = match frames {
            Some(_) => None,
            None => Some(self.embed()?),
        };
        let count = match (side, self.desc.has_encoder()) {
            (Side::Main, true) => self.size_of(None, "nz(decoder_block_count) ?? block_count")?,
            _ => self.size_of(self.desc.layer.count.as_ref(), "n_layers")?,
        };
        self.fit_layers(count)?;
        let steps = self.step_rules(side);
        let mut layers = Vec::with_capacity(count as usize);
        for layer in 0..count {
            self.layer.set(Some(layer));
            layers.push(self.layer_spec(layer, &steps)?);
        }
        self.layer.set(None);
        Ok(StackSpec {
            embed,
            frames,
            frame: self.frame(&layers)?,
            second_state: self.second_state()?,
            layers,
            head: self.head(side)?,
        })
    }

    /// Refuses more layers than the file's tensors can make, before anything is reserved for them.
    fn fit_layers(&self, count: u32) -> Result<(), ArchError> {
        let tensors = self.view.names().len();
        // A descriptor that names the block of a layer may run blocks again.
        let most = match self.desc.layer.block {
            Some(_) => tensors.saturating_mul(MAX_LOOPS),
            None => tensors,
        };
        if count as usize <= most {
            return Ok(());
        }
        Err(ArchError::Rule {
            rule: self.context("block_count"),
            what: format!(
                "found {count} layers, expected at most {most} with the {tensors} tensors of the file"
            ),
        })
    }

    pub(crate) fn block_of(&self, layer: u32) -> u32 {
        let Some(rule) = &self.desc.layer.block else {
            return layer;
        };
        self.number(rule).map_or(layer, |x| x as u32)
    }

    pub(crate) fn step_rules(&self, side: Side) -> Vec<StepRule> {
        let draft = self.desc.draft.as_ref().filter(|_| side == Side::Draft);
        let own = match (side, draft) {
            (Side::Encoder, _) => &self.desc.encoder_steps,
            (_, Some(draft)) if !draft.steps.is_empty() => &draft.steps,
            _ => &self.desc.steps,
        };
        if !own.is_empty() {
            return own.clone();
        }
        let step = |name: &str| StepRule {
            run: vec![name.to_owned()],
            ..StepRule::default()
        };
        vec![step("attention"), step("ffn")]
    }

    fn embed(&mut self) -> Result<EmbedSpec, ArchError> {
        let desc = self.desc;
        let rule = &desc.embed;
        let d = self.spec.n_embd;
        let usual = if rule.from_output && self.find_global("token_embd").is_none() {
            "output"
        } else {
            "token_embd"
        };
        let tensor = rule.tensor.clone().unwrap_or_else(|| usual.to_owned());
        let vocab = self
            .size_of(None, &format!("rows_global('{tensor}')"))
            .map_err(|_| ArchError::MissingTensor {
                name: format!("{tensor}.weight"),
                shape: vec![0, d],
            })?;
        self.spec.n_vocab = vocab;
        let table = self.weight(
            &tensor,
            Want {
                shape: &[vocab, d],
                axes: &[Axis::Vocab, Axis::Embd],
            },
        )?;
        let positions = match &rule.positions {
            Some(t) if !rule.positions_optional || self.find_global(t).is_some() => {
                let rows = self
                    .size_of(None, &format!("rows_global('{t}')"))
                    .unwrap_or(self.spec.n_ctx_train);
                Some((
                    self.weight(
                        t,
                        Want {
                            shape: &[rows, d],
                            axes: &[Axis::Other, Axis::Embd],
                        },
                    )?,
                    0,
                ))
            }
            _ => None,
        };
        let types = match &rule.types {
            Some(t) if !rule.types_optional || self.find_global(t).is_some() => {
                let rows = self
                    .size_of(None, &format!("rows_global('{t}')"))
                    .unwrap_or(1);
                Some(self.weight(
                    t,
                    Want {
                        shape: &[rows, d],
                        axes: &[Axis::Other, Axis::Embd],
                    },
                )?)
            }
            _ => None,
        };
        Ok(EmbedSpec {
            table,
            scale: self.optional(rule.scale.as_ref())?.unwrap_or(1.0),
            types,
            positions,
            norm: self.norm_opt(rule.norm.as_ref(), Normed::row(d))?,
            per_layer: self.per_layer_embed(vocab)?,
        })
    }

    fn per_layer_embed(&mut self, vocab: u32) -> Result<Option<PerLayerEmbed>, ArchError> {
        let dim = self.size_of(self.desc.embed.per_layer.as_ref(), "0")?;
        if dim == 0 {
            return Ok(None);
        }
        let (layers, d) = (self.size_of(None, "n_layers")?, self.spec.n_embd);
        self.fit("embed", &[layers, dim])?;
        let wide = layers * dim;
        let table = self.weight(
            "per_layer_token_embd",
            Want {
                shape: &[vocab, wide],
                axes: &[Axis::Vocab],
            },
        )?;
        let proj = self.proj(
            "per_layer_model_proj",
            Want {
                shape: &[wide, d],
                axes: &[],
            },
        )?;
        let rule = NormRule::Name("per_layer_proj_norm".to_owned());
        let mut norm = self
            .norm(&rule, Normed::row(dim))?
            .expect("the norm has a tensor");
        norm.width = dim;
        Ok(Some(PerLayerEmbed {
            table,
            dim,
            scale: (dim as f32).sqrt(),
            proj,
            proj_scale: 1.0 / (d as f32).sqrt(),
            norm,
            combine_scale: 0.5f32.sqrt(),
        }))
    }

    pub(crate) fn layer_spec(
        &mut self,
        layer: u32,
        steps: &[StepRule],
    ) -> Result<LayerSpec, ArchError> {
        let desc = self.desc;
        let mut spec = LayerSpec {
            block: self.block_of(layer),
            ..LayerSpec::default()
        };
        for step in steps {
            if step.when.as_ref().map_or(Ok(true), |w| self.truth(w))? {
                spec.steps.extend(self.step(step)?);
            }
        }
        let one = Want {
            shape: &[1],
            axes: &[],
        };
        spec.per_layer = self.per_layer_inject()?;
        if let Some(t) = &desc.layer.out_scale {
            spec.out_scale = self.weight_opt(t, one)?;
        }
        if let Some(t) = &desc.layer.embed_skip {
            spec.embed_skip = Some(self.weight(t, one)?);
        }
        spec.rescale = self.optional(desc.layer.rescale.as_ref())?;
        if self.truth_of(desc.layer.end_norm.as_ref(), "0")? {
            let layer = self.layer.replace(None);
            let norm = self.final_norm();
            self.layer.set(layer);
            spec.end_norm = norm?;
        }
        self.states(&mut spec)?;
        Ok(spec)
    }

    fn per_layer_inject(&mut self) -> Result<Option<PerLayerInject>, ArchError> {
        let dim = self.size_of(self.desc.embed.per_layer.as_ref(), "0")?;
        if dim == 0 {
            return Ok(None);
        }
        let d = self.spec.n_embd;
        let norm = NormRule::Name("post_norm".to_owned());
        Ok(Some(PerLayerInject {
            gate: self.proj(
                "inp_gate",
                Want {
                    shape: &[dim, d],
                    axes: &[],
                },
            )?,
            act: Act::Gelu,
            proj: self.proj(
                "proj",
                Want {
                    shape: &[d, dim],
                    axes: &[],
                },
            )?,
            norm: self.norm(&norm, Normed::row(d))?,
        }))
    }

    fn step(&mut self, rule: &StepRule) -> Result<Option<StepSpec>, ArchError> {
        let d = self.spec.n_embd;
        let mut branches = Vec::new();
        for name in &rule.run {
            branches.extend(self.branch(name, rule)?);
        }
        if branches.is_empty() {
            return Ok(None);
        }
        let skip = match self.word(rule.skip.as_ref(), "stream")?.as_str() {
            "stream" => Skip::Stream,
            "normed" => Skip::Normed,
            other => return Err(self.bad_word("skip", other)),
        };
        Ok(Some(StepSpec {
            branches,
            scale: self.number_of(rule.scale.as_ref(), "1")? as f32,
            post_norm: self.norm_opt(rule.post_norm.as_ref(), Normed::row(d))?,
            skip,
            skip_scale: self.number_of(rule.skip_scale.as_ref(), "1")? as f32,
            post_add: self.norm_opt(rule.post_add.as_ref(), Normed::row(d))?,
            readd: self.norm_opt(rule.readd.as_ref(), Normed::row(d))?,
        }))
    }

    fn branch(&mut self, name: &str, step: &StepRule) -> Result<Option<BranchSpec>, ArchError> {
        let desc = self.desc;
        let (rule, usual_norm) =
            branch_rule(desc, name).ok_or_else(|| self.bad_word("run", name))?;
        let beside_moe = name == "ffn" && step.run.iter().any(|n| n == "moe");
        let usual_when = match name {
            "moe" => "moe_layer",
            "ffn" if beside_moe => "!moe_layer",
            _ => "1",
        };
        if !self.truth_of(rule.when, usual_when)? {
            return Ok(None);
        }
        let d = self.spec.n_embd;
        let usual = NormRule::Name(usual_norm.to_owned());
        let norm = match rule.norm {
            Some(NormRule::Name(n)) if n == "none" => None,
            Some(norm) => self.norm(norm, Normed::row(d))?,
            None => self.norm(&usual, Normed::row(d))?,
        };
        let block = match name {
            "attention" => self.attention(&desc.attention, false)?,
            "cross" => self.attention(&desc.cross, true)?,
            "ffn" => self.ffn(&desc.ffn)?,
            "moe" => self.moe(&desc.moe)?,
            "linear" => {
                let tensor = desc
                    .linear
                    .tensor
                    .clone()
                    .unwrap_or_else(|| "attn_output".to_owned());
                BlockSpec::Linear(self.proj(
                    &tensor,
                    Want {
                        shape: &[d, d],
                        axes: &[Axis::Embd, Axis::Embd],
                    },
                )?)
            }
            "laurel" => self.laurel(&desc.laurel)?,
            other => self.mixer(other)?,
        };
        let source = match self.word(rule.source, "stream")?.as_str() {
            "stream" => Source::Stream,
            "layer_input" => Source::LayerInput,
            "previous" => Source::Previous,
            "beside" => Source::Beside,
            other => return Err(self.bad_word("source", other)),
        };
        let post_norm = self.norm_opt(rule.post_norm, Normed::row(d))?;
        let scale = self.number_of(rule.scale_out, "1")? as f32;
        Ok(Some(BranchSpec {
            source,
            norm,
            block,
            post_norm,
            scale,
        }))
    }

    fn final_norm(&mut self) -> Result<Option<tokkata_ir::spec::NormSpec>, ArchError> {
        let rule = &self.desc.head;
        if rule.no_norm {
            return Ok(None);
        }
        let usual = NormRule::Name(format!("{}output_norm", self.stack_prefix()));
        let norm = rule.norm.clone().unwrap_or(usual);
        self.norm(&norm, Normed::row(self.spec.n_embd))
    }

    fn head(&mut self, side: Side) -> Result<HeadSpec, ArchError> {
        let desc = self.desc;
        let rule = &desc.head;
        let norm = self.final_norm()?;
        if side == Side::Encoder {
            return Ok(HeadSpec {
                norm,
                ..HeadSpec::default()
            });
        }
        let scale = match (
            self.optional(rule.scale.as_ref())?,
            self.optional(rule.divide.as_ref())?,
        ) {
            (_, Some(x)) => Some(1.0 / x),
            (scale, None) => scale,
        };
        let suppress = match (&rule.suppress_first, &rule.suppress_last) {
            (Some(a), Some(b)) => Some((self.size_of(Some(a), "0")?, self.size_of(Some(b), "0")?)),
            _ => None,
        };
        let (pool, classifier) = (self.pool(rule.pool.as_ref())?, self.classifier()?);
        Ok(HeadSpec {
            norm,
            hidden_scale: self.optional(rule.hidden_scale.as_ref())?,
            output: self.output()?,
            scale,
            cap: self.optional(rule.cap.as_ref())?,
            suppress,
            pool,
            dense: self.dense(&rule.dense)?,
            classifier,
        })
    }

    fn output(&mut self) -> Result<Option<Proj>, ArchError> {
        let desc = self.desc;
        let rule = &desc.head;
        let tensor = rule.tensor.clone().unwrap_or_else(|| "output".to_owned());
        let kind = self.word(
            rule.output.as_ref(),
            if self.spec.generation == tokkata_ir::spec::Generation::None {
                "none"
            } else {
                "fallback"
            },
        )?;
        let rows = self.size_of(rule.rows.as_ref(), &self.spec.n_vocab.to_string())?;
        let (shape, axes) = ([rows, self.spec.n_embd], [Axis::Vocab, Axis::Embd]);
        let want = Want {
            shape: &shape,
            axes: &axes,
        };
        let table = desc
            .embed
            .tensor
            .clone()
            .unwrap_or_else(|| "token_embd".to_owned());
        let own = self.find_global(&tensor).is_some();
        let base = match kind.as_str() {
            "none" => return Ok(None),
            "tied" => table,
            "fallback" if own => tensor,
            "fallback" => table,
            "untied" => tensor,
            other => return Err(self.bad_word("head.output", other)),
        };
        if rule.ignore_bias {
            self.mark(&format!("{base}.bias"));
            return self.proj_plain(&base, want).map(Some);
        }
        self.proj(&base, want).map(Some)
    }

    fn pool(&self, word: Option<&crate::schema::Word>) -> Result<Option<PoolKind>, ArchError> {
        let key = self.meta.uint(&format!("{}.pooling_type", self.prefix));
        let kind = match key {
            Some(1) => "mean",
            Some(2) => "cls",
            Some(3) => "last",
            Some(4) => return self.rank_pool(word).map(Some),
            _ => return Ok(None),
        };
        self.pool_named(kind).map(Some)
    }

    fn pool_named(&self, kind: &str) -> Result<PoolKind, ArchError> {
        match kind {
            "mean" => Ok(PoolKind::Mean),
            "cls" => Ok(PoolKind::First),
            "last" => Ok(PoolKind::Last),
            other => Err(self.bad_word("head.pool", other)),
        }
    }

    /// The vector that a classifier reads: the file's word, or the family's; causal rows know the text at its end.
    fn rank_pool(&self, word: Option<&crate::schema::Word>) -> Result<PoolKind, ArchError> {
        let key = format!("{}.classifier.pooling_type", self.prefix);
        let usual = if self.spec.bidirectional {
            "cls"
        } else {
            "last"
        };
        let kind = match self.meta.uint(&key) {
            Some(1) => "mean".to_owned(),
            Some(2 | 3) => usual.to_owned(),
            _ => self.word(word, usual)?,
        };
        self.pool_named(&kind)
    }

    fn dense(&mut self, tensors: &[String]) -> Result<Vec<Proj>, ArchError> {
        let mut width = self.spec.n_embd;
        let mut out = Vec::new();
        for t in tensors {
            let Some((_, shape)) = self.find_global(t) else {
                continue;
            };
            let rows = shape[0] as u32;
            out.push(self.proj(
                t,
                Want {
                    shape: &[rows, width],
                    axes: &[],
                },
            )?);
            width = rows;
        }
        Ok(out)
    }

    fn classifier(&mut self) -> Result<Option<ClassifierSpec>, ArchError> {
        let desc = self.desc;
        let d = self.spec.n_embd;
        let rows = |r: &Self, t: &str| {
            r.find_global(t)
                .map(|(_, s)| s[..s.len() - 1].iter().product::<usize>() as u32)
        };
        let (dense, out) = (rows(self, "cls"), rows(self, "cls.output"));
        if dense.is_none() && out.is_none() {
            return Ok(None);
        }
        let dense = match dense {
            Some(n) => Some((
                self.proj(
                    "cls",
                    Want {
                        shape: &[n.max(1), d],
                        axes: &[],
                    },
                )?,
                n.max(1),
            )),
            None => None,
        };
        let width = dense.as_ref().map_or(d, |x| x.1);
        let norm = crate::schema::NormTable {
            tensor: Some("cls.norm".to_owned()),
            optional: true,
            ..Default::default()
        };
        let norm = self.norm(&NormRule::Full(norm), Normed::row(width))?;
        let out = match out {
            Some(n) => Some(self.proj(
                "cls.output",
                Want {
                    shape: &[n.max(1), width],
                    axes: &[],
                },
            )?),
            None => None,
        };
        let act = match &dense {
            Some(_) => self.act_named(&self.word(desc.head.classifier_act.as_ref(), "tanh")?)?,
            None => Act::Identity,
        };
        let pool = self.rank_pool(desc.head.pool.as_ref())?;
        let softmax = desc.head.classifier_softmax;
        Ok(Some(ClassifierSpec {
            pool,
            dense: dense.map(|x| x.0),
            act,
            norm,
            out,
            softmax,
        }))
    }
}

/// The fields a block of this name shares with all, and its usual norm.
fn branch_rule<'d>(d: &'d Descriptor, name: &str) -> Option<(BranchRule<'d>, &'static str)> {
    Some(match name {
        "attention" => (d.attention.branch(), "attn_norm"),
        "cross" => (d.cross.branch(), "cross_attn_norm"),
        "mla" => (d.mla.branch(), "attn_norm"),
        "ffn" => (d.ffn.branch(), "ffn_norm"),
        "moe" => (d.moe.branch(), "ffn_norm"),
        "linear" => (d.linear.branch(), "attn_norm"),
        "mamba" => (d.mamba.branch(), "attn_norm"),
        "rwkv6" => (d.rwkv6.branch(), "attn_norm"),
        "rwkv7" => (d.rwkv7.branch(), "attn_norm"),
        "channel_mix" => (d.channel_mix.branch(), "attn_norm_2"),
        "delta" => (d.delta.branch(), "attn_norm"),
        "short_conv" => (d.short_conv.branch(), "attn_norm"),
        "lightning" => (d.lightning.branch(), "attn_norm"),
        "summary" => (d.summary.branch(), "attn_norm"),
        "laurel" => (d.laurel.branch(), "attn_norm"),
        _ => return None,
    })
}
