//! Reads command lines, an argument in each line, and running none. The fuzz target uses this file too.

use std::ffi::OsString;

/// Flags, values and words that mutants take.
pub(crate) const WORDS: [&str; 56] = [
    "run",
    "chat",
    "complete",
    "bench",
    "serve",
    "llama-server",
    "quantize",
    "plan",
    "profile",
    "inspect",
    "-m",
    "-hf",
    "-ngl",
    "99",
    "-fa",
    "on",
    "-no-cnv",
    "-st",
    "-cnv",
    "-tb",
    "-ot",
    "-md",
    "-mu",
    "-mg",
    "-hff",
    "-c",
    "-t",
    "-b",
    "-ub",
    "-n",
    "-p",
    "--temp",
    "--top-k",
    "--top-p",
    "--seed",
    "--samplers",
    "--keep",
    "--mlock",
    "--no-mmap",
    "--jinja",
    "--chat-template",
    "--grammar",
    "--json-schema",
    "--logit-bias",
    "5+nan",
    "--threads=",
    "--",
    "-",
    "=",
    "--=",
    "-\u{e9}",
    "--lora",
    "--host",
    "--port",
    "--help",
    "-hfnone",
];

/// Whether a command line is understood. A refusal says something, and the same each time.
pub(crate) fn arguments(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let args = || {
        let given = text.split('\n').map(OsString::from);
        std::iter::once(OsString::from("tokkata"))
            .chain(given)
            .collect()
    };
    let read = tokkata_cli::read(args());
    if let Err(refusal) = &read {
        assert!(!refusal.trim().is_empty());
        assert_eq!(tokkata_cli::read(args()).as_ref().err(), Some(refusal));
    }
    read.is_ok()
}
