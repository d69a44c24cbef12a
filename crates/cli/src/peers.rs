//! What people type who know other programs: flags of llama.cpp's tools, of servers and of downloaders.
//!
//! A command's own flags come first. What it does not know itself is looked up in the table: it means one of our own
//! flags, is accepted since it changes no answer, or is refused with the reason.

mod env;
mod table;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use table::Flag;

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// A value only if the next argument is a number or one of these words.
    Maybe(&'static [&'static str]),
}

/// What a flag of another program means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The same as this flag of ours.
    Is(&'static str),
    /// The same as this flag of ours, whose values have other names; others are kept.
    Words(&'static str, &'static [(&'static str, &'static str)]),
    /// Nothing changes with it.
    Harmless,
    /// Nothing changes with it, which people are told.
    Noted(&'static str),
    /// Nothing changes with these values; others are refused.
    Off(&'static [&'static str], &'static str),
    /// It cannot be.
    Refused(&'static str),
}

/// Arguments in our own words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Translated {
    /// What the command is given.
    pub(crate) args: Vec<OsString>,
    /// What people are told.
    pub(crate) notes: Vec<String>,
}

/// Translates a command line, up to a `--`; for a server, variables of the environment stand for flags.
///
/// # Errors
/// Why a flag or a command of another program cannot be had.
pub(crate) fn translate(
    args: impl IntoIterator<Item = OsString>,
    variables: impl Iterator<Item = (OsString, OsString)>,
    commands: &clap::Command,
) -> Result<Translated, String> {
    let mut args: Vec<OsString> = args.into_iter().collect();
    refuse_verb(&args)?;
    if args.get(1).is_some_and(|a| a == "bench") && args.get(2).is_some_and(|a| a == "serve") {
        args.remove(2);
        args[1] = "bench-serve".into();
    }
    choose_conversation(&mut args);
    let name = args.get(1).and_then(|a| a.to_str()).unwrap_or_default();
    let Some(command) = commands.find_subcommand(name) else {
        return Ok(Translated {
            args,
            notes: Vec::new(),
        });
    };
    let own = own_flags(command);
    let mut out = Translated::default();
    if command.get_name() == "serve" {
        let (flags, notes) = env::flags(variables, &args[2..])?;
        args.splice(2..2, flags);
        out.notes = notes;
    }
    let mut rest = args.into_iter().peekable();
    while let Some(arg) = rest.next() {
        let arg = dashed(arg, &own);
        if arg == "--" {
            out.args.push(arg);
            break;
        }
        let (spelled, mut value) = cut(&arg);
        let flag = spelled.filter(|s| !own.contains(*s));
        let flag = flag.and_then(|s| find(s, command.get_name()));
        let Some((spelled, flag)) = spelled.zip(flag) else {
            out.args.push(arg);
            continue;
        };
        let takes = |next: &OsString| match flag.1 {
            Takes::Nothing => false,
            Takes::Value => true,
            Takes::Maybe(words) => is_switch(next, words),
        };
        if value.is_none() {
            value = rest.next_if(takes);
        }
        if flag.1 == Takes::Value && value.is_none() {
            return Err(format!("found {spelled} without a value, expected one"));
        }
        out.take(spelled, flag, value)?;
    }
    out.args.extend(rest);
    Ok(out)
}

impl Translated {
    fn take(&mut self, spelled: &str, flag: &Flag, value: Option<OsString>) -> Result<(), String> {
        let text = value.as_deref().and_then(OsStr::to_str).unwrap_or_default();
        match flag.2 {
            Meaning::Harmless => {}
            Meaning::Noted(why) => self.notes.push(format!("{spelled} is not used: {why}")),
            Meaning::Off(values, _) if values.contains(&text) => {}
            Meaning::Off(_, why) | Meaning::Refused(why) => {
                return Err(format!("{spelled} cannot be used: {why}"));
            }
            Meaning::Is(ours) => {
                self.args.push(ours.into());
                self.args.extend(value);
            }
            Meaning::Words(ours, words) => {
                let known = words.iter().find(|w| w.0 == text);
                let word = known.map_or(text, |w| w.1);
                self.args.push(format!("{ours}={word}").into());
            }
        }
        Ok(())
    }
}

/// A long flag with dashes between its words, where somebody wrote lines and that is no flag of ours.
fn dashed(arg: OsString, own: &BTreeSet<String>) -> OsString {
    let text = arg.to_str().unwrap_or_default();
    let (flag, value) = text
        .split_once('=')
        .map_or((text, None), |(f, v)| (f, Some(v)));
    if !flag.starts_with("--") || !flag.contains('_') || own.contains(flag) {
        return arg;
    }
    let flag = flag.replace('_', "-");
    value.map_or(flag.clone(), |v| format!("{flag}={v}")).into()
}

/// A flag and the value after its equals sign.
fn cut(arg: &OsStr) -> (Option<&str>, Option<OsString>) {
    let flag = arg.to_str().filter(|a| a.len() > 1 && a.starts_with('-'));
    match flag.and_then(|f| f.split_once('=')) {
        Some((flag, value)) if flag.starts_with("--") => (Some(flag), Some(value.into())),
        _ => (flag, None),
    }
}

fn find(spelled: &str, command: &str) -> Option<&'static Flag> {
    let first = match command {
        "complete" => table::COMPLETE,
        "serve" => table::SERVE,
        "transcribe" => table::TRANSCRIBE,
        _ => &[],
    };
    let first = first.iter();
    let mut all = first.chain(table::all());
    all.find(|flag| flag.0.split(' ').any(|s| s == spelled))
}

fn is_switch(next: &OsStr, words: &[&str]) -> bool {
    let number = |text: &str| {
        let digits = text.strip_prefix('-').unwrap_or(text);
        digits.starts_with(|c: char| c.is_ascii_digit())
    };
    next.to_str()
        .is_some_and(|text| words.contains(&text) || number(text))
}

/// The spellings that a command knows itself.
fn own_flags(command: &clap::Command) -> BTreeSet<String> {
    let mut own: BTreeSet<String> = ["-h", "--help", "-V", "--version"]
        .map(str::to_owned)
        .into();
    for arg in command.get_arguments() {
        let long = arg.get_long_and_visible_aliases().unwrap_or_default();
        let hidden = arg.get_all_aliases().unwrap_or_default();
        own.extend(long.into_iter().chain(hidden).map(|l| format!("--{l}")));
        own.extend(arg.get_short().map(|s| format!("-{s}")));
    }
    own
}

/// The flags that a command shows, and those of other programs: what a slip of the pen may have meant.
pub(crate) fn known_flags(command: &clap::Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|a| !a.is_hide_set());
    let own = shown.flat_map(|a| a.get_long_and_visible_aliases().unwrap_or_default());
    let own = own.map(|long| format!("--{long}"));
    let theirs = table::all().flat_map(|flag| flag.0.split(' ').map(str::to_owned));
    own.chain(theirs).collect()
}

fn refuse_verb(args: &[OsString]) -> Result<(), String> {
    let verb = table::VERBS
        .iter()
        .find(|v| args.get(1).is_some_and(|a| a == v.0));
    verb.map_or(Ok(()), |(verb, why)| {
        Err(format!("there is no command '{verb}': {why}"))
    })
}

/// One tool of llama.cpp's chats or continues a text by a flag, where we have two commands.
fn choose_conversation(args: &mut Vec<OsString>) {
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let is = |arg: &OsString, names: [&str; 2]| names.iter().any(|n| arg == n);
    let plain = |arg: &OsString| is(arg, ["-no-cnv", "--no-conversation"]);
    let chat = |arg: &OsString| is(arg, ["-cnv", "--conversation"]);
    let wanted = args[..end].iter().rev().find_map(|arg| match arg {
        arg if plain(arg) => Some("complete"),
        arg if chat(arg) => Some("run"),
        _ => None,
    });
    let (Some(wanted), Some(name)) = (wanted, args.get(1)) else {
        return;
    };
    let tools = ["run", "chat", "complete", "completion"];
    if !tools.iter().any(|tool| name == tool) {
        return;
    }
    args[1] = wanted.into();
    let mut at = 0;
    args.retain(|arg| {
        at += 1;
        at > end || !(plain(arg) || chat(arg))
    });
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn spoken(line: &str) -> Result<Translated, String> {
        let args = line.split_whitespace().map(OsString::from);
        let mut cli = crate::Cli::command();
        cli.build();
        translate(args, std::iter::empty(), &cli)
    }

    fn args(line: &str) -> String {
        let args = spoken(line).expect("it is accepted").args;
        let args: Vec<&str> = args.iter().filter_map(|a| a.to_str()).collect();
        args.join(" ")
    }

    #[test]
    fn flags_of_several_letters_are_spelled_out() {
        assert_eq!(
            args("tokkata bench -npl 4 -n 1 -ctk f32 -ngl 0 -- -ub"),
            "tokkata bench --npl 4 -n 1 --cache-type-k f32 --gpu-layers 0 -- -ub"
        );
    }

    #[test]
    fn what_changes_nothing_is_dropped_with_its_value() {
        assert_eq!(args("tokkata run -fa on -p hi"), "tokkata run -p hi");
        assert_eq!(args("tokkata run -fa -p hi"), "tokkata run -p hi");
        assert_eq!(
            args("tokkata run --cache-reuse=16 -m a"),
            "tokkata run -m a"
        );
        assert_eq!(
            args("tokkata bench -fa 0,1 -mmp 0 -sm none -nkvo 1 m.gguf"),
            "tokkata bench m.gguf"
        );
    }

    #[test]
    fn a_command_s_own_flags_come_first() {
        assert_eq!(
            args("tokkata bench --no-warmup -m a"),
            "tokkata bench --no-warmup -m a"
        );
        assert_eq!(args("tokkata run --no-warmup -m a"), "tokkata run -m a");
    }

    #[test]
    fn a_flag_chooses_between_chat_and_text() {
        assert_eq!(args("tokkata run -no-cnv -p a"), "tokkata complete -p a");
        assert_eq!(args("tokkata complete -m b -cnv"), "tokkata run -m b");
        assert_eq!(args("tokkata run -cnv"), "tokkata run");
    }

    #[test]
    fn other_values_and_reasons() {
        assert_eq!(args("tokkata run -rea off"), "tokkata run --think=off");
        assert_eq!(
            args("tokkata serve -np 4 -ngl 9 --port 80 -v"),
            "tokkata serve --parallel 4 --gpu-layers 9 --port 80 --verbose"
        );
        assert_eq!(
            args("tokkata serve --max_model_len=9"),
            "tokkata serve --ctx-size 9"
        );
        assert_eq!(args("tokkata run --mirostat 0"), "tokkata run");
        assert_eq!(
            args("tokkata serve --default-chat-template-kwargs {} --embd-normalize 2"),
            "tokkata serve --chat-template-kwargs {}"
        );
        let refused = |line: &str| spoken(line).expect_err("it is refused");
        assert!(refused("tokkata serve -j {}").contains("their own grammars"));
        assert!(refused("tokkata serve -e").contains("their own texts"));
        assert!(refused("tokkata run --mirostat 2").contains("--mirostat cannot be used"));
        assert!(refused("tokkata run --control-vector a.gguf").contains("adapters"));
        assert!(refused("tokkata run -ngl").contains("without a value"));
        assert!(refused("tokkata run --port 80").contains("tokkata serve"));
        assert_eq!(
            args("tokkata run -md d.gguf -p a"),
            "tokkata run --model-draft d.gguf -p a"
        );
        let noted = spoken("tokkata run -ngld 9 -p a").expect("accepted");
        assert_eq!(noted.args.len(), 4);
        assert!(noted.notes[0].starts_with("-ngld is not used"));
    }

    #[test]
    fn the_table_names_each_flag_once_and_our_own_exist() {
        let mut cli = crate::Cli::command();
        cli.build();
        let own: BTreeSet<String> = cli.get_subcommands().flat_map(own_flags).collect();
        let mut seen = BTreeSet::new();
        for (names, _, meaning) in table::all() {
            for name in names.split(' ') {
                assert!(seen.insert(name), "{name} is there twice");
            }
            if let Meaning::Is(ours) | Meaning::Words(ours, _) = meaning {
                assert!(own.contains(*ours), "{ours}");
            }
        }
        for (verb, _) in table::VERBS {
            assert!(cli.find_subcommand(verb).is_none(), "{verb}");
        }
    }
}
