//! Flags of one dash and several letters, as llama.cpp's tools have them.

use std::ffi::OsString;

/// What people type, and the flag it means.
const ALIASES: &[(&str, &str)] = &[
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-npl", "--npl"),
    ("-pg", "--pg"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-ub", "--ubatch-size"),
];

/// Arguments with those flags spelled out, up to a `--`.
pub(crate) fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    let spell = |arg: OsString| {
        literal |= arg == "--";
        let known = ALIASES.iter().find(|(short, _)| !literal && arg == *short);
        known.map_or(arg, |(_, long)| OsString::from(long))
    };
    args.into_iter().map(spell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_several_letters_are_spelled_out() {
        let args = ["tokkata", "-npl", "4", "-n", "-ctk", "--", "-ub"].map(OsString::from);
        let want = ["tokkata", "--npl", "4", "-n", "--cache-type-k", "--", "-ub"];
        assert_eq!(normalise(args), want.map(OsString::from));
    }
}
