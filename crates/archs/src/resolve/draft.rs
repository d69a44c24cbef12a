//! Multi-token-prediction heads: the layers behind the trunk, each with its own way in and out.

use tokkata_ir::Axis;
use tokkata_ir::spec::{DraftForm, DraftInput, DraftSpec, HeadSpec, NormSpec};

use super::norm::Normed;
use super::weights::Want;
use super::{Resolver, Side};
use crate::error::ArchError;
use crate::schema::{DraftRule, NormRule, NormTable};

impl Resolver<'_> {
    /// Every head that the file has, where the descriptor says how they work.
    pub(crate) fn drafts(&mut self) -> Result<(), ArchError> {
        let Some(rule) = &self.desc.draft else {
            return Ok(());
        };
        let slots = self.spec.groups.iter().map(|g| g.slots.len() as u32);
        self.spec.trunk_slots = slots.collect();
        let first = self.spec.main.layers.len() as u32;
        let count = self.size_of(None, "nextn_predict_layers ?? 0")?;
        self.side.set(Side::Draft);
        for index in first..first + count {
            self.layer.set(Some(index));
            if self.find("nextn.eh_proj").is_some() {
                let draft = self.draft(rule, index)?;
                self.spec.drafts.push(draft);
            }
        }
        self.layer.set(None);
        self.side.set(Side::Main);
        Ok(())
    }

    fn draft(&mut self, rule: &DraftRule, index: u32) -> Result<DraftSpec, ArchError> {
        let d = self.spec.n_embd;
        let (table, embed_scale) = match &self.spec.main.embed {
            Some(e) => (e.table, e.scale),
            None => unreachable!("the trunk was resolved"),
        };
        let own = Want {
            shape: &[self.spec.n_vocab, d],
            axes: &[Axis::Vocab, Axis::Embd],
        };
        let steps = self.step_rules(Side::Draft);
        let layer = self.layer_spec(index, &steps)?;
        Ok(DraftSpec {
            n_embd: d,
            connected: self.draft_frame(&layer)?,
            input: DraftInput::Joined {
                enorm: self.draft_norm("nextn.enorm")?,
                hnorm: self.draft_norm("nextn.hnorm")?,
                proj: self.proj(
                    "nextn.eh_proj",
                    Want {
                        shape: &[d, 2 * d],
                        axes: &[Axis::Embd, Axis::Other],
                    },
                )?,
            },
            table: self.weight_opt("nextn.embed_tokens", own)?.unwrap_or(table),
            embed_scale,
            layers: vec![layer],
            index,
            head: self.draft_head(rule)?,
            post_norm: rule.post_norm,
            form: DraftForm::default(),
        })
    }

    pub(super) fn draft_norm(&mut self, tensor: &str) -> Result<NormSpec, ArchError> {
        let norm = NormRule::Name(tensor.to_owned());
        let norm = self.norm(&norm, Normed::row(self.spec.n_embd))?;
        Ok(norm.expect("the norm has a tensor"))
    }

    /// The trunk's head with whatever the draft has of its own.
    fn draft_head(&mut self, rule: &DraftRule) -> Result<HeadSpec, ArchError> {
        let mut head = self.spec.main.head.clone();
        let usual = NormRule::Full(NormTable {
            tensor: Some("nextn.shared_head_norm".to_owned()),
            optional: true,
            ..NormTable::default()
        });
        let norm = rule.head_norm.as_ref().unwrap_or(&usual);
        if let Some(norm) = self.norm(norm, Normed::row(self.spec.n_embd))? {
            head.norm = Some(norm);
        }
        let base = "nextn.shared_head_head";
        if let (Some(_), Some(trunk)) = (self.find(base), &head.output) {
            let shape = self.spec.weights[trunk.weight.index()].shape.clone();
            head.output = Some(self.proj(
                base,
                Want {
                    shape: &shape,
                    axes: &[Axis::Vocab, Axis::Embd],
                },
            )?);
        }
        (head.pool, head.classifier) = (None, None);
        Ok(head)
    }
}
