//! Masks over a real vocabulary: that what they allow is accepted, and what they cost. For the cost run it alone and
//! optimised:
//! `cargo test --release -p tokkata-text --test it grammar_cost:: -- --ignored --nocapture`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value as Json;
use tokkata_formats::ModelFile;
use tokkata_text::grammar::{Grammar, GrammarSource, TokenTrie, Vocabulary};
use tokkata_text::tokenizer::{EncodeOptions, Tokenizer};

const SCHEMAS: usize = 20;
const ROUNDS: usize = 5;

/// Schemas of the suite with documents long enough to have several masks.
fn cases() -> Vec<(Json, Vec<String>)> {
    let suite: Vec<Json> =
        serde_json::from_str(include_str!("../grammar/schemas.json")).expect("JSON");
    let read = |case: Json| {
        let documents = case["valid"].as_array().expect("documents").iter();
        let documents = documents.map(|text| text.as_str().expect("a text").to_owned());
        (
            case["schema"].clone(),
            documents.filter(|text| text.len() > 12).collect::<Vec<_>>(),
        )
    };
    suite
        .into_iter()
        .map(read)
        .filter(|(_, documents)| !documents.is_empty())
        .take(SCHEMAS)
        .collect()
}

fn open() -> Option<Tokenizer> {
    let root = std::env::var_os("TOKKATA_TESTDATA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"),
        PathBuf::from,
    );
    let path = root.join("vocab/ggml-vocab-qwen2.gguf");
    if !path.exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI lacks qwen2's vocabulary"
        );
        println!("skipped: no qwen2 vocabulary in the test data");
        return None;
    }
    let file = ModelFile::open(&path).expect("a GGUF file");
    Some(Tokenizer::from_metadata(file.metadata()).expect("a tokenizer"))
}

fn vocabulary(tokenizer: &Tokenizer) -> Vocabulary {
    let ids = 0..u32::try_from(tokenizer.vocab_size()).expect("a vocabulary");
    let special = ids.clone().filter(|id| tokenizer.is_special(*id)).collect();
    let tokens = ids.map(|id| tokenizer.token_bytes(id).to_vec()).collect();
    Vocabulary {
        tokens,
        special,
        eos: tokenizer.eog().to_vec(),
    }
}

/// With the tokenizer, so that there are forced tokens.
fn encoding_trie(tokenizer: Tokenizer) -> TokenTrie {
    let vocabulary = vocabulary(&tokenizer);
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let encode = move |text: &str| tokenizer.encode(text, options);
    TokenTrie::with_encoder(vocabulary, Arc::new(encode)).expect("a trie")
}

/// Microseconds per mask along one document.
fn walk(grammar: &Grammar, tokens: &[u32], mask: &mut [u32]) -> Vec<f64> {
    let mut state = grammar.start();
    let mut times = Vec::with_capacity(tokens.len());
    for token in tokens {
        let start = Instant::now();
        state.mask(mask).expect("a mask");
        times.push(start.elapsed().as_secs_f64() * 1e6);
        assert_eq!(
            mask[*token as usize / 32] >> (token % 32) & 1,
            1,
            "a valid document's token is masked"
        );
        state.accept(*token).expect("a valid document");
    }
    times
}

/// A token that the mask allows, shorter ones more often: they end inside characters and words.
fn pick(trie: &TokenTrie, mask: &[u32], random: &mut u64) -> Option<u32> {
    let allowed: Vec<u32> = (0..trie.mask_len() as u32 * 32)
        .filter(|token| mask[*token as usize / 32] >> (token % 32) & 1 == 1)
        .collect();
    let most = if *random & 1 == 0 {
        allowed.len()
    } else {
        allowed.len().min(512)
    };
    *random = random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    let at = (*random >> 33) as usize % most.max(1);
    allowed.get(at).copied()
}

fn wander(grammar: &Grammar, trie: &TokenTrie, seed: u64) {
    let (mut random, mut said) = (seed, Vec::new());
    let (mut state, mut mask) = (grammar.start(), vec![0; trie.mask_len()]);
    while said.len() < 40 && !state.is_complete() {
        for token in state.forced() {
            if state.accept(token).is_err() {
                break;
            }
            said.push(token);
        }
        state.mask(&mut mask).expect("a mask");
        let Some(token) = pick(trie, &mask, &mut random) else {
            return;
        };
        if let Err(error) = state.accept(token) {
            panic!("{error} although its mask allows it, after {said:?}");
        }
        said.push(token);
    }
}

#[test]
fn what_masks_allow_is_accepted() {
    let Some(tokenizer) = open() else { return };
    let trie = encoding_trie(tokenizer);
    let patterns = [
        r"\w+",
        r"\w{3,}@(\w|-)+",
        r".{1,30}\W\d+",
        r"[^\x00-\x{7f}]+x",
    ];
    let patterns = patterns.map(|pattern| GrammarSource::Regex(pattern.into()));
    let schemas = cases().into_iter().map(|c| GrammarSource::JsonSchema(c.0));
    let strings =
        GrammarSource::JsonSchema(serde_json::json!({"type": "string", "pattern": r"^\w{2,}$"}));
    for source in patterns.into_iter().chain([strings]).chain(schemas) {
        let grammar = Grammar::compile(source, &trie).expect("a grammar");
        (0..10).for_each(|seed| wander(&grammar, &trie, seed));
    }
}

#[test]
#[ignore = "a measurement"]
fn a_mask_costs_less_than_50_microseconds() {
    let Some(tokenizer) = open() else { return };
    let trie = TokenTrie::new(vocabulary(&tokenizer)).expect("a trie");
    let mut mask = vec![0; trie.mask_len()];
    let (mut all, mut schemas) = (Vec::new(), 0);
    for (schema, documents) in cases() {
        let start = Instant::now();
        let grammar =
            Grammar::compile(GrammarSource::JsonSchema(schema.clone()), &trie).expect("a grammar");
        let compiled = start.elapsed();
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            for document in &documents {
                let options = EncodeOptions {
                    parse_special: false,
                    ..EncodeOptions::default()
                };
                times.extend(walk(
                    &grammar,
                    &tokenizer.encode(document, options),
                    &mut mask,
                ));
            }
        }
        times.sort_by(f64::total_cmp);
        println!(
            "{:6.1} us, compiled in {compiled:.1?}: {schema}",
            times[times.len() / 2]
        );
        all.extend(times);
        schemas += 1;
    }
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    println!(
        "{schemas} schemas, {} masks: median {:.1} us, p99 {:.1} us",
        all.len(),
        at(0.5),
        at(0.99)
    );
    assert!(schemas == SCHEMAS && at(0.5) < 50.0);
}
