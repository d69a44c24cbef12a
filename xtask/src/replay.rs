//! `cargo xtask replay MODEL.gguf [COMMITS]`: this repository's own edits as token streams: each file that a commit changed
//! is a prompt, and what it became the answer. Says how often guesses of n-grams would have been right.

use anyhow::{Context, Result, anyhow};
use tokkata::{Checkpoint, EncodeOptions, ModelFile};
use tokkata_conformance::replay::{Replayed, replay};

use crate::shell::root;

/// Bytes of a file at most.
const MOST: usize = 48 << 10;
/// Tokens of a guess.
const LENGTHS: [usize; 4] = [2, 4, 8, 16];

/// Runs the command.
///
/// # Errors
/// No model with a tokenizer, or no git.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let model = args.first().context("expected a model with a tokenizer")?;
    let commits = args.get(1).map_or(Ok(40), |n| n.parse())?;
    let checkpoint = Checkpoint::new(ModelFile::open(model)?, &[])?;
    let tokenizer = checkpoint.tokenizer()?;
    let edits = edits(commits)?;
    let encode = |text: &String| tokenizer.encode(text, EncodeOptions::default());
    let edits: Vec<_> = edits.iter().map(|(a, b)| (encode(a), encode(b))).collect();
    println!("{} edits of {commits} commits", edits.len());
    println!(
        "| tokens of a guess | tokens | steps | tokens by step | guessed in | of the guessed right |"
    );
    println!("|---|---|---|---|---|---|");
    for most in LENGTHS {
        let mut all = Replayed::default();
        for (before, after) in &edits {
            all += replay(before, after, most);
        }
        let share = |a: usize, b: usize| 100.0 * a as f64 / b.max(1) as f64;
        println!(
            "| {most} | {} | {} | {:.2} | {:.0} % of steps | {:.0} % |",
            all.tokens,
            all.steps,
            all.tokens as f64 / all.steps.max(1) as f64,
            share(all.guesses, all.steps),
            share(all.right, all.tried),
        );
    }
    Ok(())
}

/// Texts before and after, of the files that the last commits changed.
fn edits(commits: usize) -> Result<Vec<(String, String)>> {
    let count = commits.to_string();
    let all = git(&["rev-list", "--no-merges", "-n", &count, "HEAD"])?;
    let mut edits = Vec::new();
    for commit in all.lines() {
        let changed = git(&[
            "diff-tree",
            "-r",
            "--name-only",
            "--diff-filter=M",
            "--no-commit-id",
            commit,
        ])?;
        for path in changed.lines() {
            let at = |commit: &str| git(&["show", &format!("{commit}:{path}")]);
            // What is no text is left out.
            if let (Ok(before), Ok(after)) = (at(&format!("{commit}^")), at(commit))
                && before.len().max(after.len()) <= MOST
            {
                edits.push((before, after));
            }
        }
    }
    Ok(edits)
}

fn git(args: &[&str]) -> Result<String> {
    let run = std::process::Command::new("git")
        .args(args)
        .current_dir(root())
        .output()?;
    match run.status.success() {
        true => Ok(String::from_utf8(run.stdout)?),
        false => Err(anyhow!("git {}", args.join(" "))),
    }
}
