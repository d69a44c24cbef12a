//! Feed-forwards and mixtures of experts.

use std::collections::BTreeMap;

use tokkata_ir::op::{ExpertGroups, GateClamp};
use tokkata_ir::spec::{
    BlockSpec, ExpertForm, FfnForm, FfnSpec, MoeSpec, NormSpec, RouterInput, SecondExperts,
};
use tokkata_ir::{Act, Axis, NormKind, Score};

use super::Resolver;
use super::norm::Normed;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{FfnRule, MoeRule, Rule, Word};

fn name(given: Option<&String>, usual: &str) -> String {
    given.cloned().unwrap_or_else(|| usual.to_owned())
}

/// Tensor names and rules of one feed-forward.
struct FfnParts<'a> {
    rule: &'a FfnRule,
    names: [String; 3],
    width: u32,
    form: Option<&'a Word>,
    limit: Option<&'a Rule>,
    input: u32,
}

impl Resolver<'_> {
    pub(crate) fn act_named(&self, word: &str) -> Result<Act, ArchError> {
        Ok(match word {
            "silu" | "swish" => Act::Silu,
            "gelu" | "gelu_new" | "gelu_pytorch_tanh" => Act::Gelu,
            "gelu_erf" => Act::GeluErf,
            "gelu_quick" => Act::GeluQuick,
            "relu" => Act::Relu,
            "relu2" => Act::Relu2,
            "sigmoid" => Act::Sigmoid,
            "tanh" => Act::Tanh,
            "softplus" => Act::Softplus,
            "identity" => Act::Identity,
            other => return Err(self.bad_word("act", other)),
        })
    }

    pub(crate) fn act(
        &self,
        word: Option<&Word>,
        params: &BTreeMap<String, Rule>,
    ) -> Result<Act, ArchError> {
        let get = |key: &str| match params.get(key) {
            Some(rule) => self.number(rule).map(|x| x as f32),
            None => Err(ArchError::Rule {
                rule: self.context("params"),
                what: format!("{key} is not given"),
            }),
        };
        match self.word(word, "silu")?.as_str() {
            "xielu" => Ok(Act::Xielu {
                alpha_n: get("alpha_n")?,
                alpha_p: get("alpha_p")?,
                beta: get("beta")?,
                eps: get("eps")?,
            }),
            "situ" => Ok(Act::Situ { beta: get("beta")? }),
            "swish_alpha" => Ok(Act::Swish {
                alpha: get("alpha")?,
            }),
            other => self.act_named(other),
        }
    }

    fn clamp(&self, kind: Option<&Word>, limit: Option<&Rule>) -> Result<GateClamp, ArchError> {
        let Some(limit) = self.optional(limit)? else {
            return Ok(GateClamp::None);
        };
        match self.word(kind, "after")?.as_str() {
            "before" => Ok(GateClamp::Before(limit)),
            "after" => Ok(GateClamp::After(limit)),
            "before_plus_one" => Ok(GateClamp::BeforePlusOne(limit)),
            "up_tanh" => Ok(GateClamp::UpTanh(limit)),
            other => Err(self.bad_word("clamp", other)),
        }
    }

    pub(crate) fn ffn(&mut self, rule: &FfnRule) -> Result<BlockSpec, ArchError> {
        if self.word(rule.form.as_ref(), "gated")? == "none" {
            return Ok(BlockSpec::Activation(
                self.act(rule.act.as_ref(), &rule.params)?,
            ));
        }
        let names = [
            name(rule.gate.as_ref(), "ffn_gate"),
            name(rule.up.as_ref(), "ffn_up"),
            name(rule.down.as_ref(), "ffn_down"),
        ];
        let width = self.size_of(rule.width.as_ref(), "n_ff")?;
        let (form, limit, input) = (rule.form.as_ref(), rule.limit.as_ref(), self.spec.n_embd);
        let parts = FfnParts {
            rule,
            names,
            width,
            form,
            limit,
            input,
        };
        Ok(BlockSpec::Ffn(Box::new(self.ffn_of(&parts)?)))
    }

    fn ffn_form(
        &self,
        word: Option<&Word>,
        names: &[String; 3],
        width: u32,
    ) -> Result<String, ArchError> {
        let form = self.word(word, "gated")?;
        if form != "auto" {
            return Ok(form);
        }
        let rows = self.find(&names[1]).map_or(0, |(_, s)| s[0]);
        Ok(match self.find(&names[0]) {
            Some(_) => "gated",
            None if rows == 2 * width as usize => "fused",
            None => "plain",
        }
        .to_owned())
    }

    fn ffn_of(&mut self, p: &FfnParts<'_>) -> Result<FfnSpec, ArchError> {
        let (d, f) = (p.input, p.width);
        self.fit("ffn", &[f])?;
        let form = self.ffn_form(p.form, &p.names, f)?;
        let want = |rows| Want {
            shape: rows,
            axes: &[Axis::Ff, Axis::Embd],
        };
        let (one, two) = ([f, d], [2 * f, d]);
        let form = match form.as_str() {
            "gated" => FfnForm::Gated {
                gate: self.ffn_proj(p.rule, &p.names[0], want(&one))?,
                up: self.ffn_proj(p.rule, &p.names[1], want(&one))?,
            },
            "fused" => FfnForm::Fused(self.ffn_proj(p.rule, &p.names[1], want(&two))?),
            "plain" => FfnForm::Plain(self.ffn_proj(p.rule, &p.names[1], want(&one))?),
            other => return Err(self.bad_word("form", other)),
        };
        let act_div = match &p.rule.act_div {
            Some(t) => self.weight_opt(
                t,
                Want {
                    shape: &[f],
                    axes: &[Axis::Ff],
                },
            )?,
            None => None,
        };
        Ok(FfnSpec {
            n_ff: f,
            form,
            act: self.act(p.rule.act.as_ref(), &p.rule.params)?,
            clamp: self.clamp(p.rule.clamp.as_ref(), p.limit)?,
            sparsity: self.optional(p.rule.sparsity.as_ref())?,
            act_div,
            sub_norm: self.norm_opt(p.rule.sub_norm.as_ref(), Normed::row(f))?,
            down: self.ffn_proj(
                p.rule,
                &p.names[2],
                Want {
                    shape: &[d, f],
                    axes: &[Axis::Embd, Axis::Ff],
                },
            )?,
        })
    }

    fn ffn_proj(
        &mut self,
        rule: &FfnRule,
        base: &str,
        want: Want<'_>,
    ) -> Result<tokkata_ir::spec::Proj, ArchError> {
        if rule.ignore_bias {
            self.ignore(&format!("{base}.bias"));
            return self.proj_plain(base, want);
        }
        self.proj(base, want)
    }

    pub(crate) fn moe(&mut self, rule: &MoeRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let experts = self.size_of(rule.experts.as_ref(), "n_expert")?;
        let top_k = self.size_of(rule.top_k.as_ref(), "n_expert_used")?;
        if experts == 0 || top_k == 0 || top_k > experts {
            let what = format!("{top_k} of {experts} experts");
            return Err(ArchError::Rule {
                rule: self.context("moe"),
                what,
            });
        }
        let width = self.size_of(rule.width.as_ref(), "n_ff_exp")?;
        let inner = match &rule.latent_in {
            Some(t) if self.find(t).is_some() => {
                self.size_of(rule.latent_width.as_ref(), "expert_latent_length")?
            }
            _ => d,
        };
        let router = self.router(rule, [experts, d])?;
        let form = self.expert_form(rule, "exps", (experts, width, inner))?;
        let spec = MoeSpec {
            n_experts: experts,
            top_k,
            n_ff: width,
            router,
            router_input: self.router_input(rule)?,
            router_norm: self.router_norm(rule)?,
            score: self.score(rule.score.as_ref(), "softmax")?,
            select: rule
                .select
                .as_ref()
                .map(|w| self.score(Some(w), "softmax"))
                .transpose()?,
            bias: self.selection_bias(rule, experts)?,
            table: self.expert_table(rule, top_k)?,
            groups: self.expert_groups(experts)?,
            softmax_chosen: self.softmax_chosen(rule)?,
            sigmoid_chosen: rule.sigmoid_chosen,
            near_ties: self.number_of(rule.near_ties.as_ref(), "0")? as f32,
            renormalise: self.truth_of(rule.renormalise.as_ref(), "1")?,
            scale: self.optional(rule.scale.as_ref())?.unwrap_or(1.0),
            weigh_input: rule.weigh_input,
            latent_in: self.latent(rule.latent_in.as_ref(), [inner, d])?,
            latent_norm: self.norm_opt(rule.latent_norm.as_ref(), Normed::row(inner))?,
            latent_out: self.latent(rule.latent_out.as_ref(), [d, inner])?,
            form,
            act: self.act(rule.act.as_ref(), &rule.params)?,
            clamp: self.clamp(rule.clamp.as_ref(), rule.limit.as_ref())?,
            down: self.expert_proj("ffn_down_exps", (experts, inner, width))?,
            shared: self.shared_expert(rule, width)?,
            shared_gate: self.shared_gate(rule)?,
            out_scale: self.number_of(rule.out_scale.as_ref(), "1")? as f32,
            second: self.second_experts(rule, experts)?,
        };
        Ok(BlockSpec::Moe(Box::new(spec)))
    }

    /// A router vector takes the name of the router's scale sidecar.
    fn router(
        &mut self,
        rule: &MoeRule,
        shape: [u32; 2],
    ) -> Result<tokkata_ir::spec::Proj, ArchError> {
        let base = name(rule.router.as_ref(), "ffn_gate_inp");
        let want = Want {
            shape: &shape,
            axes: &[Axis::Experts, Axis::Embd],
        };
        if rule.router_vector.is_none() {
            return self.proj(&base, want);
        }
        Ok(tokkata_ir::spec::Proj {
            weight: self.weight(&base, want)?,
            scale: None,
            bias: self.bias(&base, shape[0])?,
        })
    }

    fn router_norm(
        &mut self,
        rule: &MoeRule,
    ) -> Result<Option<(NormSpec, f32, Option<tokkata_ir::WeightId>)>, ArchError> {
        let Some(tensor) = &rule.router_vector else {
            return Ok(None);
        };
        let d = self.spec.n_embd;
        let name = format!("{}{tensor}", self.layer_prefix());
        let vector = self.exact(
            &name,
            Want {
                shape: &[d],
                axes: &[Axis::Embd],
            },
        )?;
        let eps = self.number_of(
            self.desc.norm.eps.as_ref(),
            "attention.layer_norm_rms_epsilon",
        )? as f32;
        let norm = NormSpec {
            kind: NormKind::Rms,
            eps,
            width: d,
            weight: None,
            bias: None,
        };
        Ok(Some((norm, 1.0 / (d as f32).sqrt(), vector)))
    }

    fn router_input(&self, rule: &MoeRule) -> Result<RouterInput, ArchError> {
        match self.word(rule.router_input.as_ref(), "experts")?.as_str() {
            "experts" => Ok(RouterInput::Experts),
            "layer_input" => Ok(RouterInput::LayerInput),
            "stream" => Ok(RouterInput::Stream),
            other => Err(self.bad_word("moe.router_input", other)),
        }
    }

    fn score(&self, word: Option<&Word>, default: &str) -> Result<Score, ArchError> {
        match self.word(word, default)?.as_str() {
            "softmax" | "1" => Ok(Score::Softmax),
            "sigmoid" | "2" => Ok(Score::Sigmoid),
            "logits" | "3" => Ok(Score::Logits),
            "sqrt_softplus" | "4" => Ok(Score::SqrtSoftplus),
            other => Err(self.bad_word("moe.score", other)),
        }
    }

    /// Files write 3 for a softmax over the chosen logits.
    fn softmax_chosen(&self, rule: &MoeRule) -> Result<bool, ArchError> {
        if let Some(r) = &rule.softmax_chosen {
            return self.truth(r);
        }
        Ok(self.word(rule.score.as_ref(), "softmax")? == "3")
    }

    fn selection_bias(
        &mut self,
        rule: &MoeRule,
        experts: u32,
    ) -> Result<Option<tokkata_ir::WeightId>, ArchError> {
        let Some(base) = &rule.bias else {
            return Ok(None);
        };
        if self.truth_of(rule.by_token.as_ref(), "0")? {
            return Ok(None);
        }
        let want = Want {
            shape: &[experts],
            axes: &[Axis::Experts],
        };
        let prefix = self.layer_prefix();
        for name in [format!("{prefix}{base}.bias"), format!("{prefix}{base}")] {
            if let Some(id) = self.exact(&name, want)? {
                return Ok(Some(id));
            }
        }
        if rule.bias_required {
            return Err(ArchError::MissingTensor {
                name: format!("{prefix}{base}.bias"),
                shape: vec![experts],
            });
        }
        Ok(None)
    }

    /// Experts of every token, on the layers that do not choose them by scores.
    fn expert_table(
        &mut self,
        rule: &MoeRule,
        top_k: u32,
    ) -> Result<Option<tokkata_ir::WeightId>, ArchError> {
        if !self.truth_of(rule.by_token.as_ref(), "0")? {
            return Ok(None);
        }
        let want = Want {
            shape: &[self.spec.n_vocab, top_k],
            axes: &[Axis::Vocab, Axis::Other],
        };
        self.weight("ffn_gate_tid2eid", want).map(Some)
    }

    fn expert_groups(&self, experts: u32) -> Result<Option<ExpertGroups>, ArchError> {
        let count = self.size_of(None, "expert_group_count ?? 0")?;
        let used = self.size_of(None, "expert_group_used_count ?? 0")?;
        if count <= 1 || used == 0 {
            return Ok(None);
        }
        if !experts.is_multiple_of(count) || used > count {
            let what = format!("{used} of {count} groups of {experts} experts");
            return Err(ArchError::Rule {
                rule: self.context("expert_group_count"),
                what,
            });
        }
        Ok(Some(ExpertGroups { count, used }))
    }

    fn expert_form(
        &mut self,
        rule: &MoeRule,
        suffix: &str,
        (e, f, d): (u32, u32, u32),
    ) -> Result<ExpertForm, ArchError> {
        let [gate, up, both] =
            ["ffn_gate", "ffn_up", "ffn_gate_up"].map(|n| format!("{n}_{suffix}"));
        self.fit("moe", &[f])?;
        let form = match self.word(rule.form.as_ref(), "gated")?.as_str() {
            "gated" if self.find(&both).is_some() => "fused".to_owned(),
            "auto" if self.find(&both).is_some() => "fused".to_owned(),
            "auto" => if self.find(&gate).is_some() {
                "gated"
            } else {
                "plain"
            }
            .to_owned(),
            other => other.to_owned(),
        };
        match form.as_str() {
            "gated" => Ok(ExpertForm::Gated {
                gate: self.expert_proj(&gate, (e, f, d))?,
                up: self.expert_proj(&up, (e, f, d))?,
            }),
            "fused" => Ok(ExpertForm::Fused(self.expert_proj(&both, (e, 2 * f, d))?)),
            "plain" => Ok(ExpertForm::Plain(self.expert_proj(&up, (e, f, d))?)),
            other => Err(self.bad_word("moe.form", other)),
        }
    }

    fn latent(
        &mut self,
        tensor: Option<&String>,
        shape: [u32; 2],
    ) -> Result<Option<tokkata_ir::spec::Proj>, ArchError> {
        match tensor {
            Some(t) if self.find(t).is_some() => self
                .proj(
                    t,
                    Want {
                        shape: &shape,
                        axes: &[],
                    },
                )
                .map(Some),
            _ => Ok(None),
        }
    }

    fn shared_expert(&mut self, rule: &MoeRule, width: u32) -> Result<Option<FfnSpec>, ArchError> {
        if !self.truth_of(rule.shared.as_ref(), "0")? {
            return Ok(None);
        }
        let width = self.size_of(rule.shared_width.as_ref(), &width.to_string())?;
        let shape = FfnRule {
            act: rule.act.clone(),
            params: rule.params.clone(),
            clamp: rule.clamp.clone(),
            ..FfnRule::default()
        };
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(str::to_owned);
        let (form, limit) = (rule.shared_form.as_ref(), rule.shared_limit.as_ref());
        let input = self.spec.n_embd;
        self.ffn_of(&FfnParts {
            rule: &shape,
            names,
            width,
            form,
            limit,
            input,
        })
        .map(Some)
    }

    fn shared_gate(&mut self, rule: &MoeRule) -> Result<Option<tokkata_ir::spec::Proj>, ArchError> {
        let Some(tensor) = &rule.shared_gate else {
            return Ok(None);
        };
        if !self.truth_of(rule.shared.as_ref(), "0")? {
            return Ok(None);
        }
        self.proj(
            tensor,
            Want {
                shape: &[1, self.spec.n_embd],
                axes: &[Axis::Other, Axis::Embd],
            },
        )
        .map(Some)
    }

    fn second_experts(
        &mut self,
        rule: &MoeRule,
        experts: u32,
    ) -> Result<Option<SecondExperts>, ArchError> {
        let group = self.size_of(rule.second_group.as_ref(), "0")?;
        if group == 0 {
            return Ok(None);
        }
        let (e, d) = (experts / group, self.spec.n_embd);
        let width = self.size_of(None, "nz(expert_chunk_feed_forward_length) ?? head_dim")?;
        let form = self.expert_form(rule, "chexps", (e, width, d))?;
        let down = self.expert_proj("ffn_down_chexps", (e, d, width))?;
        let scale = self.number_of(rule.second_scale.as_ref(), "1")? as f32;
        Ok(Some(SecondExperts {
            group,
            form,
            down,
            scale,
        }))
    }
}
