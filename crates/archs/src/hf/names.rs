//! Tensors of a file under canonical names.

use std::collections::{BTreeMap, HashMap, HashSet};

use tokkata_core::DType;
use tokkata_formats::ModelFile;
use tokkata_ir::Recipe;

use super::config::Config;
use super::folds::Piece;
use super::rules::{HfRule, TensorRule, TensorRules, shared};
use crate::beside::is_guest;
use crate::error::ArchError;
use crate::resolve::glob;
use crate::view::Found;

/// Ends of names in files and what they become.
const ENDS: [(&str, &str); 5] = [
    (".weight", ".weight"),
    (".bias", ".bias"),
    (".gamma", ".weight"),
    (".beta", ".bias"),
    ("", ""),
];

/// Types and shapes of what a file holds, packed weights included.
pub(crate) fn stored(file: &ModelFile) -> HashMap<&str, (DType, Vec<usize>)> {
    let plain = file.tensors().iter();
    let plain = plain.map(|t| (t.name.as_str(), (t.dtype, t.shape.clone())));
    let packed = file.packed().iter();
    let packed = packed.map(|p| (p.name.as_str(), (p.kept, p.shape.clone())));
    let all = plain.chain(packed);
    all.filter(|(name, _)| !is_guest(name)).collect()
}

/// Finds tensors by the rules of a table.
pub(crate) struct Names<'a> {
    pub(crate) stored: &'a HashMap<&'a str, (DType, Vec<usize>)>,
    pub(crate) config: &'a Config<'a>,
    pub(crate) rule: &'a HfRule,
    pub(crate) experts: usize,
    used: HashSet<String>,
    found: BTreeMap<String, Found>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(
        stored: &'a HashMap<&'a str, (DType, Vec<usize>)>,
        config: &'a Config<'a>,
        rule: &'a HfRule,
    ) -> Self {
        Names {
            stored,
            config,
            rule,
            experts: 0,
            used: HashSet::new(),
            found: BTreeMap::new(),
        }
    }

    /// Every tensor that the rules find, for so many layers and experts.
    pub(crate) fn all(
        mut self,
        layers: u32,
        experts: usize,
    ) -> Result<BTreeMap<String, Found>, ArchError> {
        self.experts = experts;
        let rule = self.rule;
        for (name, rules) in HfRule::merged(&rule.tensors, &shared().tensors) {
            match name.contains("{il}") {
                false => self.one(name, rules, "")?,
                true => self.per_layer(name, rules, "", layers)?,
            }
        }
        let prefix = rule.layer.as_ref().or(shared().layer.as_ref());
        let prefix = prefix.map_or("", String::as_str);
        for (name, rules) in HfRule::merged(&rule.layers, &shared().layers) {
            self.per_layer(&format!("blk.{{il}}.{name}"), rules, prefix, layers)?;
        }
        self.check_leftovers(prefix, layers)?;
        Ok(self.found)
    }

    fn per_layer(
        &mut self,
        name: &str,
        rules: &TensorRules,
        prefix: &str,
        layers: u32,
    ) -> Result<(), ArchError> {
        for il in 0..layers {
            self.config.set_layer(Some(il));
            let il = il.to_string();
            let (name, prefix) = (name.replace("{il}", &il), prefix.replace("{il}", &il));
            self.one(&name, rules, &prefix)?;
        }
        self.config.set_layer(None);
        Ok(())
    }

    /// Adds what the first fitting alternative gives.
    fn one(&mut self, name: &str, rules: &TensorRules, prefix: &str) -> Result<(), ArchError> {
        for rule in rules.all() {
            let wanted = rule
                .when
                .as_ref()
                .map_or(Ok(true), |w| self.config.truth(w))?;
            if self.alternative(name, &rule, prefix, wanted)? && wanted {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the rule's tensors are there; a rule that does not hold only takes them out of sight.
    fn alternative(
        &mut self,
        name: &str,
        rule: &TensorRule,
        prefix: &str,
        wanted: bool,
    ) -> Result<bool, ArchError> {
        if let Some(value) = &rule.fill {
            if wanted {
                let made = Piece::filled(rule, value, self.config)?;
                self.found.insert(format!("{name}.weight"), made);
            }
            return Ok(wanted);
        }
        let mut any = false;
        for (end, becomes) in ENDS {
            let Some(sources) = self.sources(rule, prefix, end)? else {
                continue;
            };
            self.used.extend(sources.iter().cloned());
            any = true;
            if !wanted {
                continue;
            }
            let stack = rule.from.0.iter().any(|f| f.contains("{e}"));
            let parts = sources.iter().map(|s| self.source(s)).collect();
            let canonical = format!("{name}{becomes}");
            let piece = Piece::join(&canonical, parts, stack)?;
            let made = piece.fold(rule, self.config)?;
            self.found.insert(canonical, made);
        }
        Ok(any)
    }

    fn source(&self, name: &str) -> Found {
        let (dtype, shape) = self.stored[name].clone();
        Found {
            dtype,
            shape,
            recipe: Recipe::Source(name.to_owned()),
        }
    }

    /// Names of the tensors of a rule, if all of them are there under one root.
    fn sources(
        &self,
        rule: &TensorRule,
        prefix: &str,
        end: &str,
    ) -> Result<Option<Vec<String>>, ArchError> {
        if rule.from.0.is_empty() {
            return Ok(None);
        }
        let layer = rule.layer.as_ref().map(|r| self.config.number(r));
        let layer = layer.transpose()?.flatten();
        let layer = layer.unwrap_or(self.config.layer().unwrap_or(0).into());
        let roots = match self.rule.roots.is_empty() {
            true => &shared().roots,
            false => &self.rule.roots,
        };
        let found = roots.iter().find_map(|root| {
            let mut names = Vec::new();
            for from in &rule.from.0 {
                let from = from.replace("{il}", &layer.to_string());
                let whole = |from: &str| format!("{root}{prefix}{from}{end}");
                match from.contains("{e}") {
                    false => names.push(whole(&from)),
                    true if self.experts == 0 => return None,
                    true => names.extend(
                        (0..self.experts).map(|e| whole(&from.replace("{e}", &e.to_string()))),
                    ),
                }
            }
            let there = names.iter().all(|n| self.stored.contains_key(n.as_str()));
            there.then_some(names)
        });
        Ok(found)
    }

    /// Layers behind the trunk, which predict further tokens, are left alone where the configuration tells of them.
    fn check_leftovers(&self, prefix: &str, layers: u32) -> Result<(), ArchError> {
        let more = self.config.find("num_nextn_predict_layers");
        let more = more
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(0)
            .min(64) as u32;
        let behind: Vec<String> = (layers..layers + more)
            .map(|il| prefix.replace("{il}", &il.to_string()))
            .collect();
        let drafts = |name: &str| behind.iter().any(|p| name.contains(p.as_str()));
        let patterns = || self.rule.unused.iter().chain(&shared().unused);
        let mut left: Vec<&str> = (self.stored.keys().copied())
            .filter(|n| !self.used.contains(*n))
            .filter(|n| !patterns().any(|p| glob(p, n)) && !drafts(n))
            .collect();
        left.sort_unstable();
        match left.first() {
            None => Ok(()),
            Some(name) => Err(ArchError::Unnamed {
                count: left.len(),
                name: (*name).to_owned(),
            }),
        }
    }
}
