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
}
