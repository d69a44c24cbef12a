//! What a descriptor says about Hugging Face files: the `[hf]` table.
//!
//! Rules turn `config.json` into metadata under GGUF's keys, and tensors under a library's names into tensors
//! under canonical ones. What most families share stands in one table of the same form, `hf.toml`; a family says
//! only what differs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::expr::Expr;
use crate::schema::{RequireRule, Rule};

/// An expression over `config.json`; an empty text takes back what the shared table says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Formula(pub Option<Expr>);

impl<'de> Deserialize<'de> for Formula {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Formula(None));
        }
        let parsed = Expr::parse(&text);
        let mistake = |e| de::Error::custom(format!("in expression \"{text}\": {e}"));
        parsed.map(|e| Formula(Some(e))).map_err(mistake)
    }
}

/// Names and keys of Hugging Face files.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HfRule {
    /// `architectures` entries this descriptor reads.
    pub classes: Vec<String>,
    /// Whether it reads a file of these classes; another descriptor may read the others.
    pub when: Option<Rule>,
    /// The architecture string, where the descriptor has several names.
    pub arch: Option<String>,
    /// Prefixes that names of tensors may have.
    pub roots: Vec<String>,
    /// Prefix of a layer's tensors below a root; `{il}` is the layer.
    pub layer: Option<String>,
    /// Names for expressions of this table.
    pub vars: BTreeMap<String, Formula>,
    /// Canonical key below the architecture's prefix (whole keys after `$`) → value.
    pub keys: BTreeMap<String, Formula>,
    /// The same, evaluated for every layer: the value is an array.
    pub layer_keys: BTreeMap<String, Formula>,
    /// Keys whose values are lists of fixed length.
    pub lists: BTreeMap<String, ListRule>,
    /// Values that a config key, or each element of its array, may have; every other one would change numbers.
    pub expect: BTreeMap<String, Vec<toml::Value>>,
    /// Config keys without influence on numbers; `*` stands for any run of characters.
    pub harmless: Vec<String>,
    /// Facts that must hold.
    pub require: Vec<RequireRule>,
    /// Canonical name → where its values are.
    pub tensors: BTreeMap<String, TensorRules>,
    /// Canonical name without `blk.N.` → where its values are, below the layer's prefix.
    pub layers: BTreeMap<String, TensorRules>,
    /// Tensors that are not needed; `*` stands for any run of characters.
    pub unused: Vec<String>,
    /// Factors that divide rotation frequencies.
    pub rope_factors: RopeFactors,
}

/// Where a list of whole numbers stands in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListRule {
    /// Config keys, the first that is there counts.
    pub from: Vec<String>,
    /// The list where no key is there.
    pub usual: Vec<u32>,
    /// Its length in a file; zeros follow what a configuration says.
    pub len: usize,
}

/// Which frequency factors a configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RopeFactors {
    /// Rotated columns.
    pub dims: Option<Rule>,
    /// Base.
    pub theta: Option<Rule>,
    /// Where the scaling stands in the configuration.
    pub scaling: Vec<String>,
}

/// A rule, or several of which the first whose tensors exist counts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum TensorRules {
    /// The tensor's name.
    Name(String),
    /// Alternatives. They stand before the table, which would take a list as its fields.
    Any(Vec<TensorRules>),
    /// One rule.
    One(Box<TensorRule>),
}

impl TensorRules {
    /// All alternatives, in order.
    #[must_use]
    pub fn all(&self) -> Vec<TensorRule> {
        match self {
            TensorRules::Name(name) => vec![TensorRule::named(name)],
            TensorRules::One(rule) => vec![(**rule).clone()],
            TensorRules::Any(rules) => rules.iter().flat_map(TensorRules::all).collect(),
        }
    }
}

/// How a canonical tensor is made. The parts apply in the order in which they stand here.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorRule {
    /// Names of tensors without `.weight`, whose rows follow one another; `{e}` stands for every expert, `{il}` for
    /// the layer.
    pub from: Names,
    /// What `{il}` in the names stands for, where it is not the layer.
    pub layer: Option<Rule>,
    /// In place of tensors of the file: the value of every element, in a tensor of [`TensorRule::shape`].
    pub fill: Option<Rule>,
    /// Whether the rule holds; where it does not, its tensors are left alone.
    pub when: Option<Rule>,
    /// The stored matrix is transposed.
    pub transpose: bool,
    /// Sizes before rows are picked.
    pub reshape: Vec<Rule>,
    /// Rows come in so many groups of [`TensorRule::parts`]; 1 where nothing is said.
    pub groups: Option<Rule>,
    /// Rows of a group in so many units; what was `[groups, parts, unit]` becomes `[parts, groups, unit]`.
    pub parts: Vec<Rule>,
    /// The parts taken; all where nothing is said.
    pub take: Vec<usize>,
    /// A factor for the rows of each part.
    pub scales: Vec<Rule>,
    /// Two counts `a` and `b`: rows in units `[a, b]` become `[b, a]`.
    pub turn: Vec<Rule>,
    /// Rows before this one are not turned.
    pub turn_from: Option<Rule>,
    /// Heads whose rows are stored by halves and wanted in adjacent pairs.
    pub pairs: Option<Rule>,
    /// Rotated rows of a head, where only some are stored by halves.
    pub pair_rows: Option<Rule>,
    /// Rows of a head before the rotated ones; 0 where nothing is said.
    pub pair_from: Option<Rule>,
    /// The other way around: adjacent pairs are stored and halves are wanted.
    pub unpair: bool,
    /// Sizes of the result, where it is no vector.
    pub shape: Vec<Rule>,
    /// Copies of the first row follow until there are so many.
    pub pad_rows: Option<Rule>,
    /// The matrices of the result are transposed.
    pub transpose_out: bool,
    /// `neg_exp` or `exp` of every element.
    pub fold: Option<String>,
    /// Multiplies every element.
    pub scale: Option<Rule>,
    /// Added to every element of a weight, but not of a bias.
    pub add: Option<f64>,
}

impl TensorRule {
    /// The tensor as it is.
    #[must_use]
    pub fn named(name: &str) -> Self {
        TensorRule {
            from: Names(vec![name.to_owned()]),
            ..TensorRule::default()
        }
    }

    /// Settings that its expressions read.
    pub(crate) fn names(&self) -> Vec<String> {
        let single = [
            &self.when,
            &self.fill,
            &self.groups,
            &self.scale,
            &self.pad_rows,
        ];
        let lists = [&self.reshape, &self.parts, &self.scales, &self.shape];
        let rules = single
            .into_iter()
            .flatten()
            .chain(lists.into_iter().flatten());
        rules.flat_map(|rule| rule.0.names()).collect()
    }
}

/// One name or several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names(pub Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            One(String),
            Many(Vec<String>),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::One(name) => Names(vec![name]),
            Either::Many(names) => Names(names),
        })
    }
}

/// What most families share.
///
/// # Panics
/// When the built-in table is broken, which the tests rule out.
#[must_use]
pub fn shared() -> &'static HfRule {
    static SHARED: LazyLock<HfRule> = LazyLock::new(|| {
        toml::from_str(include_str!("../../hf.toml")).unwrap_or_else(|e| panic!("hf.toml: {e}"))
    });
    &SHARED
}

impl HfRule {
    /// Entries of a table and those of the shared table that it does not replace.
    pub(crate) fn merged<'a, T>(
        own: &'a BTreeMap<String, T>,
        shared: &'a BTreeMap<String, T>,
    ) -> BTreeMap<&'a str, &'a T> {
        let both = shared.iter().chain(own);
        both.map(|(k, v)| (k.as_str(), v)).collect()
    }
}
