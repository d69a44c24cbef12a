//! Requests in JSON that were bent at random: each gives events or a status, and never a panic.
#![allow(unsafe_code)]

use std::path::Path;
use std::ptr::null_mut;

use tokkata_capi::border::Sized32;
use tokkata_capi::model::{tokkata_model_free, tokkata_model_open};
use tokkata_capi::request::{tokkata_next_event, tokkata_request_free, tokkata_request_json};
use tokkata_capi::status;
use tokkata_capi::types::{tokkata_event, tokkata_model_options};

const SEEDS: [&str; 5] = [
    r#"{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0.5, "stream": true}"#,
    r#"{"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}, {"role": "user", "content": "y"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "auto", "max_tokens": 2, "logprobs": true, "top_logprobs": 3}"#,
    r#"{"prompt": ["a", [1, 2, 3]], "max_tokens": 2, "n": 2, "echo": true, "logprobs": 2, "stop": ["x", "y"], "logit_bias": {"5": -100}}"#,
    r#"{"prompt": "a", "max_tokens": 2, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}"#,
    r#"{"prompt": "a", "max_tokens": 1, "regex": "[a-c]+", "top_k": 3, "min_p": 0.1, "dry_multiplier": 1.0, "samplers": "kt", "priority": -1, "deadline_ms": 5000}"#,
];

/// Pieces that are put anywhere.
const PIECES: [&str; 14] = [
    "null",
    "-1",
    "1e999",
    "\"\"",
    "[]",
    "{}",
    "true",
    "4294967296",
    "\u{1F600}",
    "\\ud800",
    "\"a\":",
    ",",
    "}",
    "\"n\": 129,",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn bent(seed: &str, random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.as_bytes().to_vec();
    for _ in 0..1 + random.below(3) {
        let at = random.below(bytes.len() + 1);
        match random.below(4) {
            0 => drop(bytes.drain(at..(at + random.below(12)).min(bytes.len()))),
            1 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
            2 => bytes.truncate(at),
            _ if at < bytes.len() => bytes[at] = random.below(256) as u8,
            _ => {}
        }
    }
    bytes
}

#[test]
fn bent_requests_end_in_events_or_statuses() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    let path = path.to_str().expect("a path in UTF-8");
    let options = tokkata_model_options {
        n_ctx: 256,
        n_logit_rows: 16,
        ..tokkata_model_options::INIT
    };
    let mut model = null_mut();
    // SAFETY: every pointer is to something that lives here.
    let opened = unsafe {
        tokkata_model_open(
            path.as_ptr().cast(),
            path.len(),
            &raw const options,
            &raw mut model,
        )
    };
    assert_eq!(opened, status::OK);
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut asked, mut refused) = (0, 0);
    for round in 0..1500 {
        let body = bent(SEEDS[round % SEEDS.len()], &mut random);
        let mut request = null_mut();
        // SAFETY: as above.
        let status = unsafe {
            tokkata_request_json(model, body.as_ptr().cast(), body.len(), &raw mut request)
        };
        let shown = String::from_utf8_lossy(&body);
        assert_ne!(status, status::INTERNAL, "{shown}");
        if status != status::OK {
            refused += 1;
            continue;
        }
        asked += 1;
        let mut event = tokkata_event::INIT;
        for _ in 0..8 {
            // SAFETY: as above.
            let next = unsafe { tokkata_next_event(request, -1, &raw mut event) };
            assert_ne!(next, status::INTERNAL, "{shown}");
            if next != status::OK {
                break;
            }
        }
        // An answer that may be long is cancelled so.
        assert_eq!(tokkata_request_free(request), status::OK);
    }
    assert!(
        asked > 20 && refused > 20,
        "{asked} asked, {refused} refused"
    );
    assert_eq!(tokkata_model_free(model), status::OK);
}
