//! Norms: kind, width, epsilon and tensors.

use tokkata_ir::NormKind;
use tokkata_ir::spec::{HeadNorm, NormSpec};

use super::Resolver;
use super::weights::Want;
use crate::error::ArchError;
use crate::schema::{NormRule, NormTable, Rule};

/// What is normalised: `runs` runs of `width` columns, by default as one row.
#[derive(Clone, Copy)]
pub(crate) struct Normed {
    pub(crate) runs: u32,
    pub(crate) width: u32,
}

impl Normed {
    pub(crate) fn row(width: u32) -> Self {
        Normed { runs: 1, width }
    }
}

impl Resolver<'_> {
    fn norm_table(&self, rule: &NormRule) -> NormTable {
        let mut table = match rule {
            NormRule::Name(name) => NormTable {
                tensor: Some(name.clone()),
                ..NormTable::default()
            },
            NormRule::Full(table) => table.clone(),
        };
        // Of several names the first that the file has, or the last.
        if let Some((first, second)) = table.tensor.as_deref().and_then(|t| t.split_once(" ?? ")) {
            let found = if self.locate(first).is_some() {
                first
            } else {
                second
            };
            table.tensor = Some(found.to_owned());
        }
        table
    }

    pub(crate) fn norm(
        &mut self,
        rule: &NormRule,
        of: Normed,
    ) -> Result<Option<NormSpec>, ArchError> {
        let table = self.norm_table(rule);
        self.norm_of(&table, of)
    }

    pub(crate) fn norm_opt(
        &mut self,
        rule: Option<&NormRule>,
        of: Normed,
    ) -> Result<Option<NormSpec>, ArchError> {
        rule.map_or(Ok(None), |r| self.norm(r, of))
    }

    /// A norm of queries, keys or values: by default one weight shared by all heads.
    pub(crate) fn head_norm(
        &mut self,
        rule: Option<&NormRule>,
        of: Normed,
    ) -> Result<Option<HeadNorm>, ArchError> {
        let Some(rule) = rule else { return Ok(None) };
        let mut table = self.norm_table(rule);
        if table.per.is_none() {
            table.per = Some(crate::schema::Word::of("head"));
        }
        let gain = match &table.gain {
            Some(name) => Some(self.weight(
                &name.clone(),
                Want {
                    shape: &[of.runs],
                    axes: &[],
                },
            )?),
            None => None,
        };
        let after_rope = table.after_rope;
        Ok(self.norm_of(&table, of)?.map(|norm| HeadNorm {
            norm,
            after_rope,
            gain,
        }))
    }

    fn norm_of(&mut self, table: &NormTable, of: Normed) -> Result<Option<NormSpec>, ArchError> {
        if !table.when.as_ref().map_or(Ok(true), |w| self.truth(w))? {
            return Ok(None);
        }
        let weightless = self.desc.norm.weightless || table.tensor.is_none();
        let absent = table
            .tensor
            .as_ref()
            .is_some_and(|t| self.locate(t).is_none());
        if table.optional && absent && !weightless {
            return Ok(None);
        }
        let kind = self.norm_kind(table)?;
        let eps = self.norm_eps(table, kind)?;
        let per = self.word(table.per.as_ref(), "row")?;
        let total = of.runs * of.width;
        let (width, len) = match per.as_str() {
            "row" => (total, total),
            "head" => (of.width, of.width),
            "distinct" => (of.width, total),
            other => return Err(self.bad_word("per", other)),
        };
        let width = table
            .width
            .as_ref()
            .map_or(Ok(width), |w| self.size_of(Some(w), "0"))?;
        let mut spec = NormSpec {
            kind,
            eps,
            width,
            weight: None,
            bias: None,
        };
        if !weightless {
            self.norm_tensors(table, &mut spec, len)?;
        }
        Ok(Some(spec))
    }

    fn norm_tensors(
        &mut self,
        table: &NormTable,
        spec: &mut NormSpec,
        len: u32,
    ) -> Result<(), ArchError> {
        let tensor = table
            .tensor
            .clone()
            .expect("a norm with weights names its tensor");
        let want = Want {
            shape: &[len],
            axes: &[],
        };
        let found = self.locate(&tensor);
        spec.weight = Some(self.weight_flat(&tensor, want)?);
        let base = found.map_or(tensor.clone(), |f| f.trim_end_matches(".weight").to_owned());
        let bias = format!("{base}.bias");
        if table.ignore_bias {
            self.mark(&bias);
            return Ok(());
        }
        spec.bias = self.flat_exact(&bias, want)?;
        if spec.bias.is_none() && (table.bias || self.desc.norm.bias) {
            return Err(ArchError::MissingTensor {
                name: bias,
                shape: vec![len],
            });
        }
        Ok(())
    }

    fn locate(&self, tensor: &str) -> Option<String> {
        let found = if self.layer.get().is_some() {
            self.find(tensor)
        } else {
            self.find_global(tensor)
        };
        found.map(|f| f.0)
    }

    /// A weight whose elements count, whatever its dimensions (`[runs, width]` or flat).
    fn weight_flat(
        &mut self,
        base: &str,
        want: Want<'_>,
    ) -> Result<tokkata_ir::WeightId, ArchError> {
        let shape = match self.locate(base).and_then(|n| self.view.tensor(&n)) {
            Some(t) => t.shape,
            None => return self.weight(base, want),
        };
        let elements: usize = shape.iter().product();
        if elements == want.shape[0] as usize {
            let dims: Vec<u32> = shape.iter().map(|&d| d as u32).collect();
            return self.weight(
                base,
                Want {
                    shape: &dims,
                    axes: want.axes,
                },
            );
        }
        self.weight(base, want)
    }

    fn flat_exact(
        &mut self,
        name: &str,
        want: Want<'_>,
    ) -> Result<Option<tokkata_ir::WeightId>, ArchError> {
        let Some(t) = self.view.tensor(name) else {
            return Ok(None);
        };
        let elements: usize = t.shape.iter().product();
        let dims: Vec<u32> = t.shape.iter().map(|&d| d as u32).collect();
        let shape = if elements == want.shape[0] as usize {
            &dims[..]
        } else {
            want.shape
        };
        self.exact(
            name,
            Want {
                shape,
                axes: want.axes,
            },
        )
    }

    fn norm_kind(&self, table: &NormTable) -> Result<NormKind, ArchError> {
        let default = self.word(self.desc.norm.kind.as_ref(), "rms")?;
        match self.word(table.kind.as_ref(), &default)?.as_str() {
            "rms" => Ok(NormKind::Rms),
            "layer" => Ok(NormKind::Layer),
            "l2" => Ok(NormKind::L2),
            other => Err(self.bad_word("kind", other)),
        }
    }

    fn norm_eps(&self, table: &NormTable, kind: NormKind) -> Result<f32, ArchError> {
        let usual = match kind {
            NormKind::Layer => "attention.layer_norm_epsilon",
            _ => "attention.layer_norm_rms_epsilon",
        };
        let rule: Option<&Rule> = table.eps.as_ref().or(self.desc.norm.eps.as_ref());
        let eps = self.number_of(rule, usual)? as f32;
        if eps.is_finite() && eps >= 0.0 {
            return Ok(eps);
        }
        Err(ArchError::Rule {
            rule: self.context(rule.map_or(usual, |r| r.0.source())),
            what: format!("found {eps}, expected a number of at least 0"),
        })
    }
}
