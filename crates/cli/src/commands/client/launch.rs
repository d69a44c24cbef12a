//! `launch`: what other programs need to talk to a server of ours.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::ask::Caller;
use crate::commands::examples;
use crate::console::say;

/// Flags of `launch`.
#[derive(Debug, Args)]
#[command(after_long_help = examples::LAUNCH)]
pub(crate) struct LaunchArgs {
    /// The program that is to talk to the server
    #[arg(value_enum)]
    program: Program,
    /// The server's address
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    server: String,
    /// The model, if the server has several
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The server's key
    #[arg(
        long,
        value_name = "KEY",
        default_value = "none",
        hide_default_value = true
    )]
    api_key: String,
}

/// Programs that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Program {
    /// OpenAI's Codex.
    Codex,
    /// Anthropic's Claude Code.
    Claude,
}

pub(crate) fn run(args: &LaunchArgs) -> Result<()> {
    let caller = Caller::new(&args.server, Some(&args.api_key), None);
    let models = caller.get("/v1/models").unwrap_or_else(|_| {
        say(&format!(
            "{} does not answer yet; start it with `tokkata serve`",
            caller.base()
        ));
        Value::Null
    });
    let listed = models["data"].as_array().into_iter().flatten();
    let mut fitting = listed.filter(|m| {
        args.model
            .as_ref()
            .is_none_or(|name| m["id"] == name.as_str())
    });
    let first = fitting.next();
    let name = args.model.clone();
    let name = name.or_else(|| first.and_then(|m| m["id"].as_str()).map(str::to_owned));
    let name = name.unwrap_or_else(|| "tokkata".to_owned());
    let context = first.and_then(|m| m["max_model_len"].as_u64());
    print!(
        "{}",
        text(args.program, caller.base(), (&name, &args.api_key), context)
    );
    Ok(())
}

fn text(program: Program, base: &str, (model, key): (&str, &str), context: Option<u64>) -> String {
    match program {
        Program::Codex => {
            let window =
                context.map_or_else(String::new, |n| format!("model_context_window = {n}\n"));
            format!(
                "# In ~/.codex/config.toml:\nmodel = \"{model}\"\nmodel_provider = \"tokkata\"\n{window}\n\
                 [model_providers.tokkata]\nname = \"Tokkata\"\nbase_url = \"{base}/v1\"\nwire_api = \"responses\"\n\
                 env_key = \"TOKKATA_API_KEY\"\n\n# Then:\n# TOKKATA_API_KEY={key} codex\n"
            )
        }
        Program::Claude => {
            let window = context.map_or_else(String::new, |n| {
                format!("export CLAUDE_CODE_MAX_CONTEXT_TOKENS={n}\nexport CLAUDE_CODE_AUTO_COMPACT_WINDOW={n}\n")
            });
            format!(
                "export ANTHROPIC_BASE_URL={base}\nexport ANTHROPIC_AUTH_TOKEN={key}\nexport ANTHROPIC_MODEL={model}\n\
                 export ANTHROPIC_DEFAULT_OPUS_MODEL={model}\nexport ANTHROPIC_DEFAULT_SONNET_MODEL={model}\n\
                 export ANTHROPIC_DEFAULT_HAIKU_MODEL={model}\nexport ANTHROPIC_SMALL_FAST_MODEL={model}\n\
                 export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1\n{window}claude\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_are_told_where_and_what() {
        let codex = text(Program::Codex, "http://a", ("m", "k"), Some(9));
        assert!(
            codex.contains("base_url = \"http://a/v1\"")
                && codex.contains("model_context_window = 9")
        );
        let claude = text(Program::Claude, "http://a", ("m", "k"), None);
        assert!(
            claude.contains("ANTHROPIC_BASE_URL=http://a\n") && !claude.contains("CONTEXT_TOKENS")
        );
    }
}
