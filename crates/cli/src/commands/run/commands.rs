//! What a line that begins with a slash does.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};

use super::chat::Chat;
use super::recover;
use crate::console::say;

const HELP: &str = "\
/help             this list
/clear            forget the conversation
/regen            answer the last question again
/undo             forget the last question and its answer
/system TEXT      begin anew with another system prompt
/read FILE        put a file's text before the next question
/tool TEXT        give the result of the tool that was called
/set              show what answers are made with
/set NAME VALUE   change that: temp, top-k, top-p, min-p, repeat-penalty, seed, predict
/save FILE        keep the conversation in a file
/load FILE        go on with a conversation that was kept
/stats            what the last answer cost
/exit             leave
A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several lines.";

pub(super) fn run(chat: &mut Chat, command: &str) -> Result<()> {
    let (name, rest) = command
        .split_once(char::is_whitespace)
        .unwrap_or((command, ""));
    let done = act(chat, name, rest.trim());
    done.or_else(recover)
}

fn act(chat: &mut Chat, name: &str, rest: &str) -> Result<()> {
    match name {
        "/help" | "/?" => writeln!(std::io::stdout().lock(), "{HELP}")?,
        "/clear" => {
            chat.clear();
            say("the conversation is forgotten");
        }
        "/undo" => say(match chat.undo() {
            true => "the last question and its answer are forgotten",
            false => "there is no question to forget",
        }),
        "/system" => {
            chat.set_system(rest);
            say(match rest {
                "" => "a new conversation, without a system prompt",
                _ => "a new conversation, with this system prompt",
            });
        }
        "/stats" => say(&chat.stats()),
        "/regen" => chat.again()?,
        "/read" => read(chat, rest)?,
        "/tool" => chat.give_result(rest)?,
        "/set" => set(chat, rest)?,
        "/save" => save(chat, path(rest)?)?,
        "/load" => load(chat, path(rest)?)?,
        "/image" | "/audio" | "/video" => say("only text is read"),
        _ => say(&format!(
            "found the command {name}, expected one that /help lists"
        )),
    }
    Ok(())
}

fn path(rest: &str) -> Result<&Path> {
    let given = (!rest.is_empty()).then(|| Path::new(rest));
    given.ok_or_else(|| anyhow!("no file was named"))
}

fn read(chat: &mut Chat, rest: &str) -> Result<()> {
    let path = path(rest)?;
    let failed = || format!("{}: cannot be read", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    let lines = match text.lines().count() {
        1 => "1 line comes".to_owned(),
        n => format!("{n} lines come"),
    };
    say(&format!(
        "{}: {lines} before the next question",
        path.display()
    ));
    chat.before = Some(text);
    Ok(())
}

/// Tells how many messages a file has now.
fn say_messages(chat: &Chat, path: &Path) {
    let messages = match chat.messages.len() {
        1 => "1 message".to_owned(),
        n => format!("{n} messages"),
    };
    say(&format!("{}: {messages}", path.display()));
}

fn save(chat: &Chat, path: &Path) -> Result<()> {
    let kept = json!({"messages": chat.messages, "tools": chat.tools});
    let text = serde_json::to_string_pretty(&kept)?;
    let failed = || format!("{}: cannot be written", path.display());
    std::fs::write(path, text + "\n").with_context(failed)?;
    say_messages(chat, path);
    Ok(())
}

fn load(chat: &mut Chat, path: &Path) -> Result<()> {
    let failed = || format!("{}: cannot be read", path.display());
    let text = std::fs::read_to_string(path).with_context(failed)?;
    let kept: Value = serde_json::from_str(&text).with_context(failed)?;
    let messages = kept.get("messages").unwrap_or(&kept);
    let messages = messages.as_array().filter(|list| {
        let named = |m: &Value| m["role"].is_string();
        list.iter().all(named)
    });
    let expected = || anyhow!("{}: expected a list of messages", path.display());
    chat.messages.clone_from(messages.ok_or_else(expected)?);
    say_messages(chat, path);
    Ok(())
}

fn set(chat: &mut Chat, rest: &str) -> Result<()> {
    let Some((name, value)) = rest.split_once(char::is_whitespace) else {
        say(&shown(chat));
        return Ok(());
    };
    let (name, value) = (name.trim_start_matches('-').replace('_', "-"), value.trim());
    let wrong = |range: &str| anyhow!("found {value} for {name}, expected {range}");
    let number = |ok: fn(f32) -> bool, range: &str| {
        let found = value.parse().ok().filter(|x: &f32| x.is_finite() && ok(*x));
        found.ok_or_else(|| wrong(range))
    };
    let share = || number(|x| (0.0..=1.0).contains(&x), "a number from 0 to 1");
    let whole = || value.parse::<u64>().map_err(|_| wrong("a whole number"));
    match name.as_str() {
        "temp" | "temperature" => {
            chat.sampling.temperature = number(|x| x >= 0.0, "a number of at least 0")?;
        }
        "top-k" => {
            chat.sampling.top_k = value.parse().map_err(|_| wrong("a whole number"))?;
        }
        "top-p" => chat.sampling.top_p = share()?,
        "min-p" => chat.sampling.min_p = share()?,
        "repeat-penalty" => {
            chat.sampling.repeat_penalty = number(|x| x > 0.0, "a number above 0")?;
        }
        "seed" => chat.sampling.seed = whole()?,
        "predict" | "n" => {
            let count: i64 = value.parse().map_err(|_| wrong("a whole number, or -1"))?;
            chat.max_tokens = usize::try_from(count).ok();
        }
        _ => {
            let known = "temp, top-k, top-p, min-p, repeat-penalty, seed or predict";
            return Err(anyhow!("found the name {name}, expected {known}"));
        }
    }
    say(&shown(chat));
    Ok(())
}

fn shown(chat: &Chat) -> String {
    let s = &chat.sampling;
    let predict = chat.max_tokens.map_or("-1".to_owned(), |n| n.to_string());
    format!(
        "temp {}, top-k {}, top-p {}, min-p {}, repeat-penalty {}, seed {}, predict {predict}",
        s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_penalty, s.seed
    )
}
