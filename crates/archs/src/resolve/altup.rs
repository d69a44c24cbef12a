//! Frames of more than one stream: AltUp with its low-rank branch, and looped stacks of two states.

use tokkata_ir::spec::{AltUpLayer, AltUpSpec, BlockSpec, LaurelSpec, LayerSpec, Proj, State};
use tokkata_ir::{Axis, Recipe, WeightId};

use super::Resolver;
use super::norm::Normed;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{LaurelRule, NormRule};

impl Resolver<'_> {
    /// Streams around every layer, where the family has them.
    pub(crate) fn altup(&mut self, layers: u32) -> Result<Option<AltUpSpec>, ArchError> {
        let Some(rule) = &self.desc.altup else {
            return Ok(None);
        };
        let n = self.size_of(rule.n.as_ref(), "altup.num_inputs ?? 4")?;
        let active = self.size_of(rule.active.as_ref(), "altup.active_idx ?? 0")?;
        if n < 2 || active >= n {
            return Err(ArchError::Rule {
                rule: self.context("altup"),
                what: format!("stream {active} of {n}"),
            });
        }
        let expand = self.stream_maps("altup_proj", n)?;
        let collapse = self.stream_maps("altup_unembd_proj", n)?;
        let mut rows = Vec::with_capacity(layers as usize);
        for layer in 0..layers {
            self.layer.set(Some(layer));
            rows.push(self.altup_layer(n)?);
        }
        self.layer.set(None);
        Ok(Some(AltUpSpec {
            n,
            active,
            expand,
            collapse,
            layers: rows,
        }))
    }

    /// The maps of all streams but the first, stacked in one tensor `[n − 1, D, D]`.
    fn stream_maps(&mut self, tensor: &str, n: u32) -> Result<Vec<Proj>, ArchError> {
        let d = self.spec.n_embd;
        let all = self.weight(
            tensor,
            Want {
                shape: &[n - 1, d, d],
                axes: &[Axis::Other, Axis::Embd, Axis::Embd],
            },
        )?;
        let of = self.spec.weights[all.index()].recipe.clone();
        let one = |i: u32| Recipe::Rows {
            of: Box::new(of.clone()),
            start: i * d,
            len: d,
        };
        let maps = (0..n - 1).map(|i| {
            let want = Want {
                shape: &[d, d],
                axes: &[Axis::Embd, Axis::Embd],
            };
            let name = format!("{tensor}.weight (stream {})", i + 1);
            let site = self.site(tensor);
            Proj {
                weight: self.define(&name, one(i), site, want),
                scale: None,
                bias: None,
            }
        });
        Ok(maps.collect())
    }

    fn altup_layer(&mut self, n: u32) -> Result<AltUpLayer, ArchError> {
        let d = self.spec.n_embd;
        let norm = NormRule::Name("altup_router_norm".to_owned());
        let want = |shape| Want { shape, axes: &[] };
        Ok(AltUpLayer {
            router: self.proj_plain("altup_router", want(&[n, d]))?,
            router_norm: self
                .norm(&norm, Normed::row(d))?
                .expect("the norm has a tensor"),
            router_scale: 1.0 / d as f32,
            predict: self.proj_plain("altup_predict_coef", want(&[n * n, n]))?,
            correct: self.proj_plain("altup_correct_coef", want(&[n, n]))?,
            correct_scale: self.weight("altup_correct_scale", want(&[d]))?,
        })
    }

    pub(crate) fn laurel(&mut self, rule: &LaurelRule) -> Result<BlockSpec, ArchError> {
        let d = self.spec.n_embd;
        let rank = self.size_of(rule.rank.as_ref(), "rows('laurel_l')")?;
        let norm = NormRule::Name("laurel_post_norm".to_owned());
        let want = |shape| Want { shape, axes: &[] };
        Ok(BlockSpec::Laurel(Box::new(LaurelSpec {
            down: self.proj_plain("laurel_l", want(&[rank, d]))?,
            up: self.proj_plain("laurel_r", want(&[d, rank]))?,
            norm: self.norm(&norm, Normed::row(d))?,
        })))
    }

    /// Where the second state of a looped stack starts.
    pub(crate) fn second_state(&mut self) -> Result<Option<WeightId>, ArchError> {
        let Some(rule) = &self.desc.states else {
            return Ok(None);
        };
        let want = Want {
            shape: &[1, self.spec.n_embd],
            axes: &[Axis::Other, Axis::Embd],
        };
        self.weight(&rule.tensor, want).map(Some)
    }

    /// What a layer does with the states of a looped stack.
    pub(crate) fn states(&self, spec: &mut LayerSpec) -> Result<(), ArchError> {
        let Some(rule) = &self.desc.states else {
            return Ok(());
        };
        spec.join_states = self.truth_of(rule.join.as_ref(), "0")?;
        spec.store_state = match self.size_of(rule.store.as_ref(), "0")? {
            0 => None,
            1 => Some(State::First),
            2 => Some(State::Second),
            other => return Err(self.bad_word("loop.store", &other.to_string())),
        };
        Ok(())
    }
}
