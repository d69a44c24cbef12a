//! Residual frames: streams that steps read and write by weights, and a stream with a bank of what it was.

use tokkata_ir::spec::{
    BankedSpec, ConnectedSpec, Connection, FrameSpec, LayerSpec, MixSpec, NormSpec, Proj,
};
use tokkata_ir::{Axis, NormKind, Recipe, WeightId};

use super::Resolver;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{BankedRule, ConnectedRule};

impl Resolver<'_> {
    /// The frame of the stack, where it is not a single stream.
    pub(crate) fn frame(&mut self, layers: &[LayerSpec]) -> Result<Option<FrameSpec>, ArchError> {
        let desc = self.desc;
        if let Some(rule) = &desc.connected {
            let steps = |tensors: &[String]| self.fitting_steps("connected", layers, tensors.len());
            steps(&rule.tensors)?;
            return self
                .connected(rule, layers.len())
                .map(FrameSpec::Connected)
                .map(Some);
        }
        if let Some(rule) = &desc.banked {
            self.fitting_steps("banked", layers, rule.scores.len())?;
            return self
                .banked(rule, layers.len())
                .map(FrameSpec::Banked)
                .map(Some);
        }
        let altup = self.altup(layers.len() as u32)?;
        Ok(altup.map(FrameSpec::AltUp))
    }

    fn bad_frame(&self, table: &str, what: String) -> ArchError {
        ArchError::Rule {
            rule: self.context(table),
            what,
        }
    }

    /// Every layer has as many steps as the frame has tensors for.
    fn fitting_steps(
        &self,
        table: &str,
        layers: &[LayerSpec],
        steps: usize,
    ) -> Result<(), ArchError> {
        match layers.iter().find(|l| l.steps.len() != steps) {
            None => Ok(()),
            Some(l) => {
                let what = format!(
                    "a layer has {} steps, the frame tensors for {steps}",
                    l.steps.len()
                );
                Err(self.bad_frame(table, what))
            }
        }
    }

    fn weightless_norm(&self, width: u32) -> Result<NormSpec, ArchError> {
        let eps = self.desc.norm.eps.as_ref();
        Ok(NormSpec {
            kind: NormKind::Rms,
            eps: self.number_of(eps, "attention.layer_norm_rms_epsilon")? as f32,
            width,
            weight: None,
            bias: None,
        })
    }

    fn connected(
        &mut self,
        rule: &ConnectedRule,
        layers: usize,
    ) -> Result<ConnectedSpec, ArchError> {
        let n = self.size_of(rule.n.as_ref(), "hyper_connection.count")?;
        if n < 2 {
            return Err(self.bad_frame(
                "connected.n",
                format!("{n} streams; there must be two or more"),
            ));
        }
        self.fit("connected", &[n, n])?;
        self.fit("connected", &[n, self.spec.n_embd])?;
        let eps = "hyper_connection.epsilon";
        let iterations = self.size_of(rule.mix.as_ref(), "0")?;
        let mix = match iterations {
            0 => None,
            iterations => Some(MixSpec {
                iterations,
                eps: self.number_of(rule.mix_eps.as_ref(), eps)? as f32,
            }),
        };
        let parts = connection_parts(n, mix.is_some());
        let mut all = Vec::with_capacity(layers);
        for layer in 0..layers as u32 {
            self.layer.set(Some(layer));
            all.push(self.connections(rule, &parts)?);
        }
        self.layer.set(None);
        Ok(ConnectedSpec {
            n,
            norm: self.weightless_norm(n * self.spec.n_embd)?,
            read_eps: self.number_of(rule.read_eps.as_ref(), eps)? as f32,
            write_scale: self.number_of(rule.write_scale.as_ref(), "2")? as f32,
            write_eps: self.number_of(rule.write_eps.as_ref(), "0")? as f32,
            mix,
            layers: all,
            collapse: match &rule.collapse {
                Some(tensor) => Some(self.connection(tensor, &parts[..1])?),
                None => None,
            },
        })
    }

    /// The frame of a multi-token-prediction head in the current layer: the trunk's, with connections of its own.
    pub(crate) fn draft_frame(
        &mut self,
        layer: &LayerSpec,
    ) -> Result<Option<ConnectedSpec>, ArchError> {
        let (Some(rule), Some(FrameSpec::Connected(trunk))) =
            (&self.desc.connected, &self.spec.main.frame)
        else {
            return Ok(None);
        };
        let trunk = trunk.clone();
        self.fitting_steps("connected", std::slice::from_ref(layer), rule.tensors.len())?;
        let parts = connection_parts(trunk.n, trunk.mix.is_some());
        Ok(Some(ConnectedSpec {
            layers: vec![self.connections(rule, &parts)?],
            ..trunk
        }))
    }

    /// The connections of the current layer's steps.
    fn connections(
        &mut self,
        rule: &ConnectedRule,
        parts: &[u32],
    ) -> Result<Vec<Connection>, ArchError> {
        let steps = rule.tensors.iter().map(|t| self.connection(t, parts));
        steps.collect()
    }

    /// A map with one stored scale for each part of its rows.
    fn connection(&mut self, tensor: &str, parts: &[u32]) -> Result<Connection, ArchError> {
        let (rows, d) = (parts.iter().sum(), parts[0] * self.spec.n_embd);
        let kept = parts.iter().filter(|&&p| p > 0).count() as u32;
        let weight = self.weight(
            &format!("{tensor}_fn"),
            Want {
                shape: &[rows, d],
                axes: &[Axis::Other, Axis::Embd],
            },
        )?;
        let flat = |shape| Want { shape, axes: &[] };
        let (rows, kept) = ([rows], [kept]);
        let bias = self.weight(&format!("{tensor}_base"), flat(&rows))?;
        let scale = self.weight(&format!("{tensor}_scale"), flat(&kept))?;
        let parts = parts.iter().enumerate();
        let map = parts
            .flat_map(|(i, &len)| std::iter::repeat_n(i as u32, len as usize))
            .collect();
        Ok(Connection {
            map: Proj {
                weight,
                scale: Some(self.dealt(scale, map)),
                bias: Some(bias),
            },
        })
    }

    /// A vector whose element i is element `map[i]` of another.
    fn dealt(&mut self, of: WeightId, map: Vec<u32>) -> WeightId {
        let def = &self.spec.weights[of.index()];
        let (name, len) = (format!("{} (per row)", def.name), map.len() as u32);
        let single = Recipe::Reshape {
            of: Box::new(def.recipe.clone()),
            cols: 1,
        };
        let permuted = Recipe::Permute {
            of: Box::new(single),
            map,
        };
        let recipe = Recipe::Reshape {
            of: Box::new(permuted),
            cols: len,
        };
        let site = def.site.clone();
        let want = Want {
            shape: &[len],
            axes: &[],
        };
        self.define(&name, recipe, site, want)
    }

    fn banked(&mut self, rule: &BankedRule, layers: usize) -> Result<BankedSpec, ArchError> {
        let every = self.size_of(rule.every.as_ref(), "attn_res.block_size")?;
        if every == 0 {
            return Err(self.bad_frame(
                "banked.every",
                "0 layers between entries of the bank".to_owned(),
            ));
        }
        let d = [self.spec.n_embd];
        let want = Want {
            shape: &d,
            axes: &[Axis::Embd],
        };
        let mut all = Vec::with_capacity(layers);
        for layer in 0..layers as u32 {
            self.layer.set(Some(layer));
            let steps = rule.scores.iter().map(|t| self.weight(t, want));
            all.push(steps.collect::<Result<_, _>>()?);
        }
        self.layer.set(None);
        Ok(BankedSpec {
            every,
            norm: self.weightless_norm(self.spec.n_embd)?,
            layers: all,
            head: self.weight(&rule.head, want)?,
        })
    }
}

/// Rows of a connection's map: those that read, those that write, and those that mix.
fn connection_parts(n: u32, mixed: bool) -> [u32; 3] {
    [n, n, if mixed { n * n } else { 0 }]
}
