//! Newtypes for everything a plan refers to.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $tag:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into its table.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A value of one plan.
    ValueId, "%"
);
id!(
    /// A weight of the program.
    WeightId, "w"
);
id!(
    /// A constant of the program.
    ConstId, "c"
);
id!(
    /// A cache group of the program.
    GroupId, "g"
);
id!(
    /// A device of the machine; 0 until a program is partitioned.
    DeviceId, "dev"
);

/// A layer's place inside a cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    /// The group that owns the blocks.
    pub group: GroupId,
    /// The slot's index inside the group.
    pub slot: u32,
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.group, self.slot)
    }
}

/// Layer and role of an op: the one identity for adapters, statistics, overrides, profiles and bisection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// The layer, or `None` for the input and output stages.
    pub layer: Option<u32>,
    /// The role inside the layer, such as `attn_q`.
    pub role: String,
}

impl Site {
    /// A site outside the layers.
    #[must_use]
    pub fn global(role: &str) -> Self {
        Site {
            layer: None,
            role: role.to_owned(),
        }
    }

    /// A site of layer `layer`.
    #[must_use]
    pub fn layer(layer: u32, role: &str) -> Self {
        Site {
            layer: Some(layer),
            role: role.to_owned(),
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{layer}.{}", self.role),
            None => f.write_str(&self.role),
        }
    }
}
