//! Tensors to weights: names, shapes, sidecars and left-overs.

use tokkata_core::DType;
use tokkata_ir::spec::{ExpertProj, Proj};
use tokkata_ir::{Axis, Recipe, Site, WeightDef, WeightId};

use super::{Resolver, Side};
use crate::error::ArchError;
use crate::view::Found;

/// Tensors that any file may carry and no plan needs.
const IGNORED: &[(&str, &str)] = &[
    (
        "*.input_scale",
        "affects only the precision of quantised activations",
    ),
    (
        "rope_freqs.weight",
        "read as a constant where the descriptor rotates with factors",
    ),
    (
        "rope_factors_long.weight",
        "one of a pair, chosen by the context",
    ),
    (
        "rope_factors_short.weight",
        "one of a pair, chosen by the context",
    ),
    ("blk.*.rope_freqs.weight", "a copy of the global factors"),
    (
        "blk.*.rope_factors_*.weight",
        "a copy of the global factors",
    ),
    (
        "blk.*.attn_rot_embd",
        "tables of very old files, computed from the header",
    ),
    (
        "blk.*.attn.rotary_emb.inv_freq",
        "tables of very old files, computed from the header",
    ),
];

/// What a weight is for: its named dimensions and role.
#[derive(Clone, Copy)]
pub(crate) struct Want<'a> {
    pub(crate) shape: &'a [u32],
    pub(crate) axes: &'a [Axis],
}

/// Tensors of numbers that count: the experts of each token.
const COUNTS: &str = "ffn_gate_tid2eid";

/// Whole numbers are no weights: nothing says what they stand for.
fn check_type(name: &str, dtype: DType) -> Result<(), ArchError> {
    let whole = [DType::I8, DType::I16, DType::I32, DType::I64];
    if !whole.contains(&dtype) || name.contains(COUNTS) {
        return Ok(());
    }
    Err(ArchError::Tensor {
        name: name.to_owned(),
        what: format!("has the type {dtype}, expected one of weights, such as F16 or Q8_0"),
    })
}

impl Resolver<'_> {
    /// Prefix of the current layer's tensors.
    pub(crate) fn layer_prefix(&self) -> String {
        let block = self.layer.get().map_or(0, |l| self.block_of(l));
        format!("{}blk.{block}.", self.stack_prefix())
    }

    /// What distinguishes the tensors of two stacks in one file.
    pub(crate) fn stack_prefix(&self) -> &str {
        match (&self.desc.layer.prefix, self.side.get()) {
            (Some(prefix), _) => prefix,
            (None, Side::Encoder) => "enc.",
            (None, Side::Main) if self.desc.has_encoder() => "dec.",
            (None, Side::Main | Side::Draft) => "",
        }
    }

    fn candidates(prefix: &str, base: &str) -> [String; 2] {
        [format!("{prefix}{base}.weight"), format!("{prefix}{base}")]
    }

    /// A tensor of the current layer with or without `.weight`.
    pub(crate) fn find(&self, base: &str) -> Option<(String, Vec<usize>)> {
        self.find_in(&self.layer_prefix(), base)
    }

    pub(crate) fn find_global(&self, base: &str) -> Option<(String, Vec<usize>)> {
        self.find_in("", base)
    }

    fn find_in(&self, prefix: &str, base: &str) -> Option<(String, Vec<usize>)> {
        Self::candidates(prefix, base)
            .into_iter()
            .find_map(|n| self.view.tensor(&n).map(|t| (n, t.shape)))
    }

    fn prefix_of(&self, global: bool) -> String {
        if global {
            String::new()
        } else {
            self.layer_prefix()
        }
    }

    pub(crate) fn site(&self, base: &str) -> Site {
        match self.layer.get() {
            Some(layer) => Site::layer(layer, base),
            None => Site::global(base),
        }
    }

    /// The weight `base` of the current layer, or of the model when no layer is current.
    pub(crate) fn weight(&mut self, base: &str, want: Want<'_>) -> Result<WeightId, ArchError> {
        let prefix = self.prefix_of(self.layer.get().is_none());
        match self.weight_in(&prefix, base, want)? {
            Some(id) => Ok(id),
            None => Err(ArchError::MissingTensor {
                name: format!("{prefix}{base}.weight"),
                shape: want.shape.to_vec(),
            }),
        }
    }

    /// The same where the file has it.
    pub(crate) fn weight_opt(
        &mut self,
        base: &str,
        want: Want<'_>,
    ) -> Result<Option<WeightId>, ArchError> {
        let prefix = self.prefix_of(self.layer.get().is_none());
        self.weight_in(&prefix, base, want)
    }

    pub(crate) fn weight_in(
        &mut self,
        prefix: &str,
        base: &str,
        want: Want<'_>,
    ) -> Result<Option<WeightId>, ArchError> {
        let found = Self::candidates(prefix, base)
            .into_iter()
            .find_map(|n| self.view.tensor(&n).map(|t| (n, t)));
        found
            .map(|(name, t)| self.add(&name, t, base, want))
            .transpose()
    }

    /// A tensor by its whole name, such as a bias or a sidecar.
    pub(crate) fn exact(
        &mut self,
        name: &str,
        want: Want<'_>,
    ) -> Result<Option<WeightId>, ArchError> {
        let found = self.view.tensor(name);
        found.map(|t| self.add(name, t, name, want)).transpose()
    }

    fn add(
        &mut self,
        name: &str,
        found: Found,
        base: &str,
        want: Want<'_>,
    ) -> Result<WeightId, ArchError> {
        self.used.borrow_mut().insert(name.to_owned());
        self.check_shape(name, &found.shape, want.shape)?;
        if let Some(&id) = self.by_name.get(name) {
            return Ok(id);
        }
        check_type(name, found.dtype)?;
        let site = self.site(base);
        Ok(self.define(name, found.recipe, site, want))
    }

    fn check_shape(&self, name: &str, found: &[usize], expected: &[u32]) -> Result<(), ArchError> {
        let squeeze_found = found.iter().copied().filter(|&d| d != 1);
        if squeeze_found.eq(expected.iter().map(|&d| d as usize).filter(|&d| d != 1)) {
            return Ok(());
        }
        Err(ArchError::Shape {
            name: name.to_owned(),
            found: found.to_vec(),
            expected: expected.to_vec(),
        })
    }

    /// Adds a weight with any recipe.
    pub(crate) fn define(
        &mut self,
        name: &str,
        recipe: Recipe,
        site: Site,
        want: Want<'_>,
    ) -> WeightId {
        let mut axes = want.axes.to_vec();
        axes.resize(want.shape.len(), Axis::Other);
        let id = WeightId(self.spec.weights.len() as u32);
        let shape = want.shape.to_vec();
        let uses = tokkata_ir::Uses::default();
        self.spec.weights.push(WeightDef {
            name: name.to_owned(),
            shape,
            axes,
            recipe,
            uses,
            site,
        });
        self.by_name.insert(name.to_owned(), id);
        id
    }

    /// A linear map with its sidecars: `.scale` and, where allowed, `.bias`.
    pub(crate) fn proj(&mut self, base: &str, want: Want<'_>) -> Result<Proj, ArchError> {
        let weight = self.weight(base, want)?;
        let bias = self.bias(base, want.shape[0])?;
        Ok(Proj {
            weight,
            scale: self.scale(base, want.shape[0])?,
            bias,
        })
    }

    /// The same without a bias; one in the file stays a left-over.
    pub(crate) fn proj_plain(&mut self, base: &str, want: Want<'_>) -> Result<Proj, ArchError> {
        let weight = self.weight(base, want)?;
        Ok(Proj {
            weight,
            scale: self.scale(base, want.shape[0])?,
            bias: None,
        })
    }

    pub(crate) fn bias(&mut self, base: &str, n: u32) -> Result<Option<WeightId>, ArchError> {
        let name = format!("{}{base}.bias", self.prefix_of(self.layer.get().is_none()));
        self.exact(
            &name,
            Want {
                shape: &[n],
                axes: &[],
            },
        )
    }

    pub(crate) fn scale(&mut self, base: &str, n: u32) -> Result<Option<WeightId>, ArchError> {
        let name = format!("{}{base}.scale", self.prefix_of(self.layer.get().is_none()));
        let len = self
            .view
            .tensor(&name)
            .map_or(1, |t| t.shape.iter().product::<usize>() as u32);
        self.exact(
            &name,
            Want {
                shape: &[if len == n { n } else { 1 }],
                axes: &[],
            },
        )
    }

    pub(crate) fn expert_proj(
        &mut self,
        base: &str,
        (e, n, k): (u32, u32, u32),
    ) -> Result<ExpertProj, ArchError> {
        let want = Want {
            shape: &[e, n, k],
            axes: &[Axis::Experts],
        };
        let weight = self.weight(base, want)?;
        let prefix = self.layer_prefix();
        let scale = self.exact(
            &format!("{prefix}{base}.scale"),
            Want {
                shape: &[e],
                axes: &[Axis::Experts],
            },
        )?;
        let bias = self.exact(
            &format!("{prefix}{base}.bias"),
            Want {
                shape: &[e, n],
                axes: &[Axis::Experts],
            },
        )?;
        Ok(ExpertProj {
            weight,
            scale,
            bias,
        })
    }

    /// Marks a tensor of the current layer as read though nothing uses it.
    pub(crate) fn ignore(&self, name: &str) {
        let prefix = self.prefix_of(self.layer.get().is_none());
        self.used.borrow_mut().insert(format!("{prefix}{name}"));
    }

    /// Marks a global tensor as read.
    pub(crate) fn mark(&self, name: &str) {
        self.used.borrow_mut().insert(name.to_owned());
    }

    /// A tensor that nothing asked for is an error.
    pub(crate) fn check_leftovers(&self) -> Result<(), ArchError> {
        let used = self.used.borrow();
        let own = self.desc.unused.iter().map(|u| u.name.as_str());
        let patterns: Vec<&str> = IGNORED.iter().map(|i| i.0).chain(own).collect();
        let trailing = self.trailing_blocks();
        let left: Vec<String> = (self.view.names().into_iter())
            .filter(|n| !used.contains(n))
            .filter(|n| !patterns.iter().any(|p| glob(p, n)))
            .filter(|n| !trailing.iter().any(|p| n.starts_with(p)))
            .collect();
        match left.first() {
            None => Ok(()),
            Some(name) => Err(ArchError::Leftover {
                arch: self.prefix.clone(),
                count: left.len(),
                name: name.clone(),
            }),
        }
    }

    /// Blocks of multi-token prediction behind the trunk: loaded only as drafts.
    fn trailing_blocks(&self) -> Vec<String> {
        let get = |key: &str| {
            self.meta
                .uint(&format!("{}.{key}", self.prefix))
                .unwrap_or(0)
        };
        let (count, next) = (get("block_count"), get("nextn_predict_layers"));
        (count.saturating_sub(next)..count)
            .map(|b| format!("blk.{b}."))
            .collect()
    }
}

/// Whether `name` matches `pattern`, where `*` stands for any run of characters.
pub(crate) fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|i| rest.is_char_boundary(i) && glob(tail, &rest[i..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn stars_match_any_run() {
        assert!(glob("blk.*.rope_freqs.weight", "blk.12.rope_freqs.weight"));
        assert!(glob("*.input_scale", "blk.0.ffn_up.input_scale"));
        assert!(!glob("blk.*.rope_freqs.weight", "rope_freqs.weight"));
        assert!(!glob("a*b", "acbd"));
    }
}
