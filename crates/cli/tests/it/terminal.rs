//! A conversation at a terminal: line editing, history, commands, and Ctrl-C that stops an answer and not the program.
#![cfg(unix)]

use std::path::Path;

use rexpect::session::{Options, PtySession, spawn_with_options};

use crate::common::{testdata, tokkata};

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

/// A conversation in a home of its own, with answers that end by themselves.
fn short(model: &Path, home: &Path, more: &[&str]) -> PtySession {
    let mut command = tokkata();
    command.arg("run").arg("-m").arg(model);
    command.args(["--temp", "0", "-n", "12"]).args(more);
    command.env("HOME", home).env_remove("XDG_STATE_HOME");
    let options = Options::new().timeout_ms(Some(30_000));
    spawn_with_options(command, options).expect("a terminal")
}

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

#[test]
fn lines_that_come_at_once_are_all_asked() {
    let Some(model) = testdata("lines_at_once", "models/dreams-260k.gguf") else {
        return;
    };
    let home = tempfile::tempdir().expect("a directory");
    let mut talk = short(&model, home.path(), &["--color", "never"]);
    talk.exp_string("Ctrl-D leaves").expect("a greeting");
    talk.send("Once upon a time\n/stats\n/undo\n/undo\n")
        .expect("lines");
    talk.flush().expect("they are sent");
    talk.exp_string("ended by").expect("the second line");
    talk.exp_string("and its answer are forgotten")
        .expect("the third");
    talk.exp_string("no question to forget")
        .expect("the fourth");
    talk.send_line("\"\"\"").expect("a line");
    talk.send_line("one").expect("a line");
    talk.send_line("two").expect("a line");
    talk.send_line("\"\"\"").expect("a line");
    talk.send_line("three \\").expect("a line");
    talk.send_line("four").expect("a line");
    let file = home.path().join("talk.json");
    talk.send_line(&format!("/save {}", file.display()))
        .expect("a line");
    talk.exp_string("4 messages").expect("it is kept");
    let kept = std::fs::read_to_string(&file).expect("a conversation");
    let kept: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["messages"][0]["content"], "one\ntwo");
    assert_eq!(kept["messages"][2]["content"], "three \nfour");
    talk.send_line("/system Be brief").expect("a line");
    talk.exp_string("with this system prompt")
        .expect("it is told");
    talk.send_line(&format!("/load {}", file.display()))
        .expect("a line");
    talk.exp_string("4 messages").expect("it is there again");
    talk.send_line("/set temp 0.5").expect("a line");
    talk.exp_string("temp 0.5").expect("it is set");
    talk.send_line("/tool 5").expect("a line");
    talk.exp_string("no tool was called").expect("it is told");
    talk.send_control('d').expect("Ctrl-D");
    talk.exp_eof().expect("the end");
}

#[test]
fn questions_are_told_from_answers_where_colours_are_wanted() {
    let Some(model) = testdata("questions_are_told", "models/dreams-260k.gguf") else {
        return;
    };
    let home = tempfile::tempdir().expect("a directory");
    let mut talk = short(&model, home.path(), &[]);
    talk.exp_string("\u{1b}[1;32m> ").expect("a green prompt");
    talk.send_control('d').expect("Ctrl-D");
    talk.exp_eof().expect("the end");
    let mut talk = short(&model, home.path(), &["--color", "never"]);
    let before = talk.exp_string("> ").expect("a prompt");
    assert!(!before.contains("\u{1b}[1;32m"), "{before:?}");
    talk.send_control('d').expect("Ctrl-D");
    talk.exp_eof().expect("the end");
}

/// Notes break between words however narrow the terminal is, and no word of theirs is lost.
#[test]
fn notes_break_between_words() {
    let Some(model) = testdata("notes_break", "models/dreams-260k.gguf") else {
        return;
    };
    let home = tempfile::tempdir().expect("a directory");
    let options = Options::new().timeout_ms(Some(30_000));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "stty cols 30 rows 24; exec \"$0\" run -m \"$1\""]);
    command.arg(tokkata().get_program()).arg(&model);
    command
        .env("HOME", home.path())
        .env_remove("XDG_STATE_HOME");
    let mut talk = spawn_with_options(command, options).expect("a terminal");
    let said = talk.exp_string("leaves").expect("a greeting") + "leaves";
    let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
    assert!(
        lines.iter().all(|line| line.chars().count() <= 30),
        "{said}"
    );
    let words: Vec<&str> = said.split_whitespace().collect();
    let whole = words.join(" ");
    for note in [
        "the model has no chat template, so it goes on with the text as it stands; --chat-template gives it one",
        "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves",
    ] {
        assert!(whole.contains(note), "{said}");
    }
    // Before the prompt is there, the terminal takes Ctrl-D for the end of a line that nobody reads.
    talk.exp_string("> ").expect("a prompt");
    talk.send_control('d').expect("Ctrl-D");
    talk.exp_eof().expect("the end");
}
