//! What can be wrong with a descriptor or with a file read through one.

/// A mistake of a descriptor or a file. Texts name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ArchError {
    /// No descriptor has this name.
    #[error(
        "architecture '{arch}' is not known; `tokkata archs` lists the known ones, --arch-file adds one"
    )]
    Unknown {
        /// The file's architecture.
        arch: String,
    },
    /// The file names no architecture.
    #[error("the file has no general.architecture, so it is no language model")]
    NoArch,
    /// The family is known but cannot be run.
    #[error("architecture '{arch}' cannot be run: {why}")]
    Unsupported {
        /// The file's architecture.
        arch: String,
        /// The reason.
        why: String,
    },
    /// A requirement of the descriptor does not hold.
    #[error("architecture '{arch}': {say}")]
    Requirement {
        /// The file's architecture.
        arch: String,
        /// What the descriptor says.
        say: String,
    },
    /// A descriptor is no valid TOML or breaks the schema.
    #[error("{file}: {what}")]
    Descriptor {
        /// The descriptor.
        file: String,
        /// The mistake with its line.
        what: String,
    },
    /// A key that a rule needs is missing.
    #[error("the file lacks the metadata {key}, which {rule} needs")]
    MissingKey {
        /// The key.
        key: String,
        /// The rule.
        rule: String,
    },
    /// A rule gives no sensible value.
    #[error("{rule}: {what}")]
    Rule {
        /// The rule.
        rule: String,
        /// The mistake.
        what: String,
    },
    /// A tensor is missing.
    #[error("the file lacks the tensor {name} {shape:?}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// Its expected shape, slowest first.
        shape: Vec<u32>,
    },
    /// A tensor has the wrong shape.
    #[error("tensor {name} has shape {found:?}, expected {expected:?} (slowest first)")]
    Shape {
        /// Its name.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it must have.
        expected: Vec<u32>,
    },
    /// Tensors that nothing uses.
    #[error(
        "the file has {count} tensors that architecture '{arch}' does not use, such as {name}; the file is of another family or the descriptor is incomplete"
    )]
    Leftover {
        /// The file's architecture.
        arch: String,
        /// How many.
        count: usize,
        /// One of them.
        name: String,
    },
    /// A tensor cannot be read.
    #[error("tensor {name} {what}")]
    Tensor {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// The directory has no configuration.
    #[error("the model has no config.json, so it is no Hugging Face directory")]
    NoConfig,
    /// The configuration names no class.
    #[error("config.json has no architectures, expected the class of the model there")]
    NoClass,
    /// No descriptor reads this class.
    #[error(
        "no descriptor reads models of class {class}; use a GGUF file of the model, or add a descriptor with --arch-file"
    )]
    UnknownClass {
        /// The class in the configuration.
        class: String,
    },
    /// Descriptors read the class, but not this variant.
    #[error("models of class {class} are known, but not with the settings of this config.json")]
    ClassVariant {
        /// The class in the configuration.
        class: String,
    },
    /// A setting that nothing reads.
    #[error(
        "config.json sets {key} to {value}, which no rule knows and which may change what the model computes; use a GGUF file, or add the key to a descriptor with --arch-file"
    )]
    ConfigKey {
        /// The key, dots between levels.
        key: String,
        /// Its value.
        value: String,
    },
    /// A setting with a value that cannot be run.
    #[error("config.json sets {key} to {value}, expected {expected}")]
    ConfigValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A setting that a rule needs.
    #[error("config.json lacks {what}, which {rule} needs")]
    ConfigMissing {
        /// The key.
        what: String,
        /// What needs it.
        rule: String,
    },
    /// A requirement of a descriptor's rules for directories.
    #[error("config.json: {say}")]
    ConfigRequirement {
        /// What the descriptor says.
        say: String,
    },
    /// Tensors that no rule names.
    #[error(
        "the file has {count} tensors that no rule reads, such as {name}; the descriptor of this class is incomplete"
    )]
    Unnamed {
        /// How many.
        count: usize,
        /// One of them.
        name: String,
    },
}
