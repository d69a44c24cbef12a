//! A command line that makes no sense, told with what was probably meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use tokkata::archs::near::nearest;

use crate::{console, peers};

/// Prints help as it is, and a mistake with all of its lines.
pub(crate) fn tell(mut error: Error, commands: &Command, args: &[OsString]) -> u8 {
    let code = u8::try_from(error.exit_code()).unwrap_or(2);
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Help goes to a stream that may be closed; there is nobody to tell.
        let _ = error.print();
        return code;
    }
    let name = args.get(1).and_then(|a| a.to_str()).unwrap_or_default();
    let command = commands.find_subcommand(name);
    suggest(&mut error, commands, command);
    let help = command.map_or("tokkata --help".to_owned(), |c| {
        format!("tokkata {} --help", c.get_name())
    });
    console::say(&text(&error.to_string(), &help));
    code
}

/// The message without its frame, and where to read more.
fn text(whole: &str, help: &str) -> String {
    let end = |l: &&str| !l.starts_with("Usage:") && !l.starts_with("For more information");
    let lines = whole.lines().map(str::trim_end).take_while(end);
    let lines: Vec<&str> = lines.filter(|l| !l.is_empty()).collect();
    let text = lines.join("\n");
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let between = if lines.len() == 1 { "; " } else { "\n" };
    format!("tokkata: {text}{between}see `{help}`")
}

/// Replaces what the parser would suggest by what is near among all that people type.
fn suggest(error: &mut Error, commands: &Command, command: Option<&Command>) {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let names = commands.get_subcommands();
    let names = names.flat_map(|c| c.get_name_and_visible_aliases());
    let near = match error.kind() {
        ErrorKind::UnknownArgument => {
            let flags = command.map(peers::known_flags).unwrap_or_default();
            given(ContextKind::InvalidArg).and_then(|flag| {
                nearest(&flag, flags.iter().map(String::as_str)).map(str::to_owned)
            })
        }
        ErrorKind::InvalidSubcommand => given(ContextKind::InvalidSubcommand)
            .and_then(|name| nearest(&name, names).map(str::to_owned)),
        _ => return,
    };
    for kind in [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::Suggested,
    ] {
        error.remove(kind);
    }
    let Some(near) = near else { return };
    let (kind, value) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::SuggestedArg, ContextValue::String(near)),
        _ => (
            ContextKind::SuggestedSubcommand,
            ContextValue::Strings(vec![near]),
        ),
    };
    error.insert(kind, value);
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn told(line: &str) -> String {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut error = crate::Cli::try_parse_from(&args).expect_err("a mistake");
        let mut commands = crate::Cli::command();
        commands.build();
        let command = commands.find_subcommand(&args[1]);
        suggest(&mut error, &commands, command);
        text(&error.to_string(), "HELP")
    }

    #[test]
    fn suggestions_know_the_flags_of_others() {
        let text = told("tokkata run --mlok");
        assert!(
            text.contains("'--mlok'") && text.contains("'--mlock'"),
            "{text}"
        );
        assert!(!told("tokkata run --xyzzy").contains("similar"));
        let text = told("tokkata runn");
        assert!(text.contains("'runn'") && text.contains("'run'"), "{text}");
        assert!(!told("tokkata sing").contains("similar"));
    }

    #[test]
    fn messages_keep_their_lines() {
        assert_eq!(
            text("error: a\n  b\n\n  tip: c\n\nUsage: d\n", "x --help"),
            "tokkata: a\n  b\n  tip: c\nsee `x --help`"
        );
        assert_eq!(text("error: a\n\nUsage: d", "x"), "tokkata: a; see `x`");
    }
}
