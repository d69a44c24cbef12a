//! Numbers that are best measured: how many workgroups leave none of an adapter idle, and what they share. They change no bit.

/// What is chosen for an adapter. The defaults are what an H200 is fastest with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choices {
    /// Workgroups of products from which threads make two outputs each rather than one.
    pub(crate) pairs: u32,
    /// Workgroups of products that go on with what others would do, rather than make ready as many more.
    pub(crate) groups: u32,
    /// Those of products of several rows, whose columns take longer to make ready, where all are shared at once.
    pub(crate) several: u32,
    /// Rows from which products of many columns read them as integers that were made once.
    pub(crate) integers: u32,
    /// Mi of weights from which that is worth a dispatch of its own.
    pub(crate) weights: u32,
    /// Columns that a workgroup of products shares at most.
    pub(crate) columns: u32,
    /// Tiles of cooperative matrices from which these have twice the rows.
    pub(crate) tiles: u32,
    /// Workgroups of attention from which keys are not divided among more.
    pub(crate) keys: u32,
}

impl Default for Choices {
    fn default() -> Self {
        Choices {
            pairs: 512,
            groups: 512,
            several: 132,
            integers: 2,
            weights: 4,
            columns: 4096,
            tiles: 64,
            keys: 256,
        }
    }
}

/// A number of them: its name, its place, and what is tried for it.
struct Number {
    name: &'static str,
    of: fn(&mut Choices) -> &mut u32,
    tried: &'static [u32],
}

const NUMBERS: [Number; 8] = [
    Number {
        name: "pairs",
        of: |c| &mut c.pairs,
        tried: &[64, 128, 256, 512, 1024],
    },
    Number {
        name: "groups",
        of: |c| &mut c.groups,
        tried: &[64, 128, 256, 512, 1024, 2048],
    },
    Number {
        name: "several",
        of: |c| &mut c.several,
        tried: &[32, 64, 132, 264, 512],
    },
    Number {
        name: "integers",
        of: |c| &mut c.integers,
        tried: &[2, 3, 5, 9],
    },
    Number {
        name: "weights",
        of: |c| &mut c.weights,
        tried: &[0, 4, 16],
    },
    Number {
        name: "columns",
        of: |c| &mut c.columns,
        tried: &[1024, 2048, 4096],
    },
    Number {
        name: "tiles",
        of: |c| &mut c.tiles,
        tried: &[1, 32, 64, 96, 132],
    },
    Number {
        name: "keys",
        of: |c| &mut c.keys,
        tried: &[32, 64, 128, 256, 512],
    },
];

impl Choices {
    /// Takes `NAME=NUMBER`; says whether there is such a number and such a choice of it.
    pub(crate) fn take(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once('=') else {
            return false;
        };
        let number = NUMBERS.iter().find(|n| n.name == name);
        let value = value.parse().ok();
        match number.zip(value) {
            Some((number, value)) if number.tried.contains(&value) => {
                *(number.of)(self) = value;
                true
            }
            _ => false,
        }
    }

    /// Those that are not the default, as [`Choices::take`] takes them.
    pub(crate) fn said(mut self) -> Vec<String> {
        let mut usual = Choices::default();
        let said = NUMBERS.iter().filter_map(|number| {
            let value = *(number.of)(&mut self);
            (value != *(number.of)(&mut usual)).then(|| format!("{}={value}", number.name))
        });
        said.collect()
    }

    /// What may be taken instead of one of them, as [`Choices::take`] takes it: number by number.
    pub(crate) fn others(mut self) -> Vec<String> {
        let all = NUMBERS.iter().flat_map(|number| {
            let now = *(number.of)(&mut self);
            let others = number.tried.iter().filter(move |&&v| v != now);
            others.map(|value| format!("{}={value}", number.name))
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_taken_again() {
        let mut choices = Choices::default();
        assert!(choices.said().is_empty());
        assert_eq!(choices.others().len(), 28);
        for other in choices.others() {
            assert!(choices.take(&other), "{other}");
        }
        let said = choices.said();
        assert_eq!(
            said,
            [
                "pairs=1024",
                "groups=2048",
                "several=512",
                "integers=9",
                "weights=16",
                "columns=2048",
                "tiles=132",
                "keys=512"
            ]
        );
        let mut again = Choices::default();
        assert!(said.iter().all(|s| again.take(s)));
        assert_eq!(again, choices);
        for wrong in ["pairs", "pairs=x", "pairs=513", "colums=2048", ""] {
            assert!(!again.take(wrong), "{wrong}");
        }
    }
}
