//! Why a specification gives no program.

/// A specification or a request that cannot become a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The model has no such output.
    #[error("this model has no output '{0}'")]
    NoOutput(String),
    /// A limit that must not be zero.
    #[error("the limit {0} is 0")]
    ZeroLimit(&'static str),
}
