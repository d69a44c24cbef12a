//! A conversation at a terminal: line editing, history, commands, and Ctrl-C that stops an answer and not the program.
#![cfg(unix)]

mod common;

use std::path::Path;

use rexpect::session::{Options, PtySession, spawn_with_options};

use common::{testdata, tokkata};

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

/// A conversation in a home of its own.
fn conversation(model: &Path, home: &Path) -> PtySession {
    let template = home.join("template.jinja");
    std::fs::write(&template, TEMPLATE).expect("a template");
    let mut command = tokkata();
    command.arg("run").arg("-m").arg(model);
    command.arg("--chat-template-file").arg(template);
    // The model never ends by itself, and its context holds minutes of text.
    command.args(["-c", "100000", "--ignore-eos", "--temp", "0"]);
    command.env("HOME", home).env_remove("XDG_STATE_HOME");
    let options = Options::new()
        .timeout_ms(Some(30_000))
        .strip_ansi_escape_codes(true);
    spawn_with_options(command, options).expect("a terminal")
}

#[test]
fn ctrl_c_stops_the_answer_and_the_history_stays() {
    let Some(model) = testdata("terminal", "models/dreams-260k.gguf") else {
        return;
    };
    let home = tempfile::tempdir().expect("a directory");
    let mut talk = conversation(&model, home.path());
    talk.exp_string("Ctrl-D leaves").expect("a greeting");
    talk.send_line("/help").expect("a line");
    talk.exp_string("/clear").expect("help");
    talk.send_line("Once upon a time").expect("a line");
    talk.exp_string("ripple").expect("an answer");
    talk.send_control('c').expect("Ctrl-C");
    talk.send_line("/stats").expect("a line");
    talk.exp_string("ended by cancelled")
        .expect("the answer was stopped");
    talk.send_control('d').expect("Ctrl-D");
    talk.exp_eof().expect("the end");

    let history = home.path().join(".local/state/tokkata/history");
    let kept = std::fs::read_to_string(history).expect("a history");
    assert!(kept.contains("Once upon a time"), "{kept}");
    let mut again = conversation(&model, home.path());
    again.exp_string("Ctrl-D leaves").expect("a greeting");
    again.send("\u{1b}[A").expect("an arrow");
    again.flush().expect("it is sent");
    again.exp_string("/stats").expect("the last line of before");
}
