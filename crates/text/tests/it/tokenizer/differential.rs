//! Random texts against another implementation, which runs as one process per vocabulary.
//!
//! `TOKKATA_VOCAB_ORACLE` names a program that is started with the path of a vocabulary, then
//! answers each text on its standard input (u32 length, bytes) with ids (u32 count, u32 each) or, to
//! abstain, with `u32::MAX`, and
//! the length `u32::MAX` with the tokens that end a generation. `TOKKATA_FUZZ_STRINGS` (default 2000)
//! texts are tried per vocabulary; `TOKKATA_FUZZ_ONLY` picks vocabularies by a part of their name;
//! `TOKKATA_FUZZ_FILES` lists other files (GGUF, `tokenizer.json`, SentencePiece models). Of several
//! programs, split by commas, one must agree. With `TOKKATA_FUZZ_SPECIAL=1` special tokens are
//! added and parsed, as the oracle then must do too. With `TOKKATA_FUZZ_IDS_ONLY=1` the oracle need not know about single tokens.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

use super::common::{open, vocabularies};
use super::strings::{self, Random};

struct Oracle {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
}

impl Oracle {
    fn start(program: &str, vocabulary: &Path) -> Self {
        let mut child = Command::new(program)
            .arg(vocabulary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e}"));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Oracle {
            child,
            stdin,
            stdout,
        }
    }

    /// `None` where the oracle says that it knows the text's characters too badly to judge.
    fn encode(&mut self, text: &str) -> Option<Vec<u32>> {
        self.stdin
            .write_all(&(text.len() as u32).to_le_bytes())
            .unwrap();
        self.stdin.write_all(text.as_bytes()).unwrap();
        let count = self.number();
        (count != u32::MAX).then(|| (0..count).map(|_| self.number()).collect())
    }

    fn ends_generation(&mut self) -> Vec<u32> {
        self.stdin.write_all(&u32::MAX.to_le_bytes()).unwrap();
        self.ids()
    }

    fn piece(&mut self, id: u32) -> Vec<u8> {
        self.stdin.write_all(&(u32::MAX - 1).to_le_bytes()).unwrap();
        self.stdin.write_all(&id.to_le_bytes()).unwrap();
        let mut bytes = vec![0; self.number() as usize];
        self.stdout.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn ids(&mut self) -> Vec<u32> {
        (0..self.number()).map(|_| self.number()).collect()
    }

    fn number(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.stdout
            .read_exact(&mut bytes)
            .expect("the oracle answers");
        u32::from_le_bytes(bytes)
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

fn chosen() -> Vec<PathBuf> {
    if let Some(files) = std::env::var_os("TOKKATA_FUZZ_FILES") {
        return std::env::split_paths(&files).collect();
    }
    let only = std::env::var("TOKKATA_FUZZ_ONLY").unwrap_or_default();
    vocabularies()
        .into_iter()
        .filter(|p| p.to_string_lossy().contains(&only))
        .collect()
}

#[test]
fn random_texts_match_the_oracle() {
    let Ok(program) = std::env::var("TOKKATA_VOCAB_ORACLE") else {
        eprintln!("skipped: TOKKATA_VOCAB_ORACLE names no program");
        return;
    };
    let mut failed = Vec::new();
    for file in chosen() {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let mismatches = compare(&program, &file);
        println!("{name}: {} mismatches", mismatches.len());
        for (text, ours, theirs) in mismatches.iter().take(number("TOKKATA_FUZZ_SHOW", 5)) {
            println!("  {text:?}\n    ours   {ours:?}\n    theirs {theirs:?}");
        }
        if !mismatches.is_empty() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

type Mismatch = (String, Vec<u32>, Vec<Vec<u32>>);

fn compare(program: &str, file: &Path) -> Vec<Mismatch> {
    let tokenizer = open(file);
    let mut oracles: Vec<_> = program.split(',').map(|p| Oracle::start(p, file)).collect();
    let pieces = match number("TOKKATA_FUZZ_IDS_ONLY", 0) {
        0 => compare_tokens(&tokenizer, &mut oracles[0]),
        _ => Vec::new(),
    };
    let mut random = Random::new(number("TOKKATA_FUZZ_SEED", 1) as u64);
    let special = number("TOKKATA_FUZZ_SPECIAL", 0) != 0;
    let options = EncodeOptions {
        add_special: special,
        parse_special: special,
    };
    let mut mismatches = Vec::new();
    for _ in 0..number("TOKKATA_FUZZ_STRINGS", 2000) {
        let text = strings::text(&mut random, &pieces);
        let ours = tokenizer.encode(&text, options);
        let theirs: Vec<_> = oracles
            .iter_mut()
            .filter_map(|oracle| oracle.encode(&text))
            .collect();
        if !theirs.is_empty() && !theirs.contains(&ours) {
            mismatches.push((text, ours, theirs));
        }
    }
    mismatches
}

/// Compares the tokens that end a generation and the bytes of every token; returns those that are text.
fn compare_tokens(tokenizer: &Tokenizer, oracle: &mut Oracle) -> Vec<String> {
    assert_eq!(tokenizer.eog(), oracle.ends_generation());
    let mut texts = Vec::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        let piece = tokenizer.token_bytes(id);
        let theirs = oracle.piece(id);
        // It marks characters outside the byte alphabet, which here are what they are.
        let marked = theirs.windows(12).any(|w| w == b"[UNK_BYTE_0x");
        assert!(
            piece == theirs || marked,
            "token {id} {:?}",
            tokenizer.token_text(id)
        );
        texts.extend(String::from_utf8(piece.to_vec()));
    }
    texts
}
