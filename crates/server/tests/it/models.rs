//! Several models by name: what is in memory, who makes room, and what callers may change.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Reply, demo, get_from, options, post_with, start};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokkata_server::{Kind, Library, ModelLimits, Offer, Open, Opened, ServerOptions, Stock};

const MEGABYTES: u64 = 1 << 20;

/// Loads the model in the box, and counts how often.
#[derive(Clone, Default)]
struct Opener {
    opened: Arc<AtomicUsize>,
    breaks: bool,
}

impl Open for Opener {
    fn need(&self, _: u64) -> Result<u64, String> {
        Ok(20 * MEGABYTES)
    }

    fn open(&self, _: u64) -> Result<Opened, String> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        match self.breaks {
            true => Err("the file ends too soon".to_owned()),
            false => Ok(Opened::Text {
                service: Box::new(demo().service),
                borrowed_template: false,
            }),
        }
    }
}

fn offer(id: &str, opener: &Opener) -> Offer {
    Offer {
        id: id.to_owned(),
        aliases: vec![format!("{id}-too")],
        tags: Vec::new(),
        path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf"),
        kind: Kind::Text,
        opener: Some(Arc::new(opener.clone())),
        opened: None,
    }
}

fn server(limits: ModelLimits, offers: Vec<Offer>) -> String {
    let options = ServerOptions {
        models: limits,
        ..options()
    };
    let library = None;
    start(options, Stock { offers, library })
}

fn two(limits: ModelLimits) -> (String, Opener, Opener) {
    let (a, b) = (Opener::default(), Opener::default());
    let base = server(limits, vec![offer("a", &a), offer("b", &b)]);
    (base, a, b)
}

fn ask(base: &str, model: &str) -> Reply {
    let body = json!({"model": model, "prompt": "Once upon a time", "max_tokens": 4});
    post_with(base, "/v1/completions", &body, &[])
}

fn answered(base: &str, model: &str) -> Value {
    let reply = ask(base, model);
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["choices"][0]["text"].clone()
}

fn statuses(base: &str) -> Vec<(String, String)> {
    let all = get_from(base, "/v1/models", &[]).json();
    let one = |m: &Value| {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        (text(&m["id"]), text(&m["status"]["value"]))
    };
    all["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(one)
        .collect()
}

fn until(base: &str, model: &str, status: &str) {
    let wanted = (model.to_owned(), status.to_owned());
    let end = Instant::now() + Duration::from_secs(20);
    while !statuses(base).contains(&wanted) {
        assert!(Instant::now() < end, "{:?}", statuses(base));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_model_unused_longest_makes_room() {
    let (base, a, b) = two(ModelLimits {
        most: Some(1),
        ..ModelLimits::default()
    });
    until(&base, "a", "unloaded");
    let first = answered(&base, "a");
    until(&base, "a", "loaded");
    assert_eq!(answered(&base, "b-too"), first);
    assert_eq!(statuses(&base)[0].1, "unloaded");
    assert_eq!(statuses(&base)[1].1, "loaded");
    assert_eq!(answered(&base, "a"), first);
    assert_eq!(
        (
            a.opened.load(Ordering::SeqCst),
            b.opened.load(Ordering::SeqCst)
        ),
        (2, 1)
    );
    let unknown = ask(&base, "c");
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    assert!(unknown.text.contains("known are a, b"), "{}", unknown.text);
    let running = get_from(&base, "/api/ps", &[]).json();
    assert_eq!(running["models"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        get_from(&base, "/api/tags", &[]).json()["models"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn a_model_that_was_used_again_stays_before_one_that_was_not() {
    let openers: Vec<Opener> = (0..3).map(|_| Opener::default()).collect();
    let offers = ["a", "b", "c"].iter().zip(&openers);
    let limits = ModelLimits {
        most: Some(2),
        ..ModelLimits::default()
    };
    let base = server(limits, offers.map(|(id, o)| offer(id, o)).collect());
    for model in ["a", "b", "a", "c"] {
        answered(&base, model);
    }
    let here: Vec<String> = statuses(&base).into_iter().map(|s| s.1).collect();
    assert_eq!(here, ["loaded", "unloaded", "loaded"]);
}

#[test]
fn one_budget_holds_for_all_models() {
    let bytes = demo().service.memory_bytes();
    let need = Opener::default().need(0).expect("a number");
    assert!(
        need < bytes,
        "what is measured counts, not what was guessed: {bytes}"
    );
    let (base, a, b) = two(ModelLimits {
        bytes: Some(bytes + need - 1),
        ..ModelLimits::default()
    });
    answered(&base, "a");
    answered(&base, "b");
    assert_eq!(statuses(&base)[0].1, "unloaded");
    let (base, ..) = two(ModelLimits {
        bytes: Some(bytes + need),
        ..ModelLimits::default()
    });
    answered(&base, "a");
    answered(&base, "b");
    assert_eq!(statuses(&base)[0].1, "loaded");
    assert_eq!(
        (
            a.opened.load(Ordering::SeqCst),
            b.opened.load(Ordering::SeqCst)
        ),
        (1, 1)
    );
    let (small, ..) = two(ModelLimits {
        bytes: Some(need - 1),
        ..ModelLimits::default()
    });
    let refused = ask(&small, "a");
    assert_eq!(refused.status, 503);
    assert!(refused.text.contains("--models-memory"), "{}", refused.text);
}

#[test]
fn models_are_loaded_and_unloaded_by_name() {
    let (base, a, _) = two(ModelLimits {
        on_request: false,
        ..ModelLimits::default()
    });
    assert_eq!(ask(&base, "a").status, 503);
    let body = json!({"model": "a"});
    for _ in 0..2 {
        let loaded = post_with(&base, "/v1/models/load", &body, &[]);
        assert_eq!(
            (loaded.status, loaded.json()),
            (200, json!({"success": true}))
        );
    }
    assert_eq!(a.opened.load(Ordering::SeqCst), 1);
    answered(&base, "a");
    for _ in 0..2 {
        let gone = post_with(&base, "/models/unload", &body, &[]);
        assert_eq!((gone.status, gone.json()), (200, json!({"success": true})));
        assert_eq!(statuses(&base)[0].1, "unloaded");
    }
    assert_eq!(ask(&base, "a").status, 503);
    let unknown = post_with(&base, "/models/load", &json!({"model": "c"}), &[]);
    assert_eq!(unknown.status, 404);
    assert_eq!(
        post_with(&base, "/models/load", &json!({}), &[]).status,
        400
    );
    let alone = crate::common::shared();
    let stays = post_with(alone, "/models/unload", &json!({"model": "demo"}), &[]);
    assert_eq!(stays.status, 400, "{}", stays.text);
}

#[test]
fn a_model_that_nobody_uses_leaves() {
    let (base, a, _) = two(ModelLimits {
        idle: Some(Duration::from_millis(500)),
        ..ModelLimits::default()
    });
    let first = answered(&base, "a");
    until(&base, "a", "unloaded");
    // What was counted stays, and asking for it wakes nobody.
    let figures = get_from(&base, "/metrics", &[]).text;
    assert!(
        figures.contains("generation_tokens_total{model_name=\"a\"} 4"),
        "{figures}"
    );
    assert_eq!(get_from(&base, "/props", &[]).json()["is_sleeping"], true);
    assert_eq!(statuses(&base)[0].1, "unloaded");
    assert_eq!(answered(&base, "a"), first);
    assert_eq!(a.opened.load(Ordering::SeqCst), 2);
    // A request may say that it stays.
    let keep = json!({"model": "a", "prompt": "a", "max_tokens": 1, "keep_alive": -1});
    assert_eq!(post_with(&base, "/v1/completions", &keep, &[]).status, 200);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(statuses(&base)[0].1, "loaded");
    // Or that it goes.
    let go = json!({"model": "a", "keep_alive": 0});
    let gone = post_with(&base, "/api/generate", &go, &[]).json();
    assert_eq!(gone["done_reason"], "unload", "{gone}");
    assert_eq!(statuses(&base)[0].1, "unloaded");
}

/// Asks for a long answer and reads its first piece.
fn long_answer(base: &str, model: &str) -> BufReader<TcpStream> {
    let address = base.strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("a server");
    let body = json!({"model": model, "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let body = body.to_string();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("a request");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        reader.read_line(&mut line).expect("a line");
    }
    reader
}

#[test]
fn a_model_in_use_stays_and_the_next_one_waits() {
    let (base, ..) = two(ModelLimits {
        most: Some(1),
        patience: Duration::from_millis(300),
        ..ModelLimits::default()
    });
    let mut first = long_answer(&base, "a");
    let refused = ask(&base, "b");
    if refused.status != 200 {
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert!(refused.header("retry-after").is_some());
    }
    // The answer goes on to its end.
    let mut line = String::new();
    while !line.contains("[DONE]") {
        line.clear();
        assert!(
            first.read_line(&mut line).expect("a line") > 0,
            "the stream was cut"
        );
    }
    drop(first);
    answered(&base, "b");
}

#[test]
fn many_who_ask_at_once_load_a_model_once() {
    let (base, a, b) = two(ModelLimits {
        most: Some(1),
        ..ModelLimits::default()
    });
    let ask = |i: usize| {
        let base = base.clone();
        let model = if i.is_multiple_of(2) { "a" } else { "b" };
        std::thread::spawn(move || answered(&base, model))
    };
    let asks: Vec<_> = (0..12).map(ask).collect();
    let texts: Vec<Value> = asks
        .into_iter()
        .map(|t| t.join().expect("an answer"))
        .collect();
    assert!(texts.windows(2).all(|w| w[0] == w[1]), "{texts:?}");
    let opened = a.opened.load(Ordering::SeqCst) + b.opened.load(Ordering::SeqCst);
    assert!((2..=12).contains(&opened), "{opened}");
}

#[test]
fn a_model_that_cannot_be_loaded_is_its_own_fault() {
    let broken = Opener {
        breaks: true,
        ..Opener::default()
    };
    let whole = Opener::default();
    let base = server(
        ModelLimits::default(),
        vec![offer("broken", &broken), offer("whole", &whole)],
    );
    let refused = ask(&base, "broken");
    assert_eq!(refused.status, 500);
    assert!(refused.text.contains("ends too soon"), "{}", refused.text);
    answered(&base, "whole");
    let all = get_from(&base, "/v1/models", &[]).json();
    assert_eq!(all["data"][0]["status"]["failed"], true);
    assert_eq!(get_from(&base, "/health", &[]).status, 200);
}

/// A folder, whose files are all the model in the box.
struct Folder(PathBuf);

impl Library for Folder {
    fn scan(&self) -> Vec<Offer> {
        let files = std::fs::read_dir(&self.0).expect("a folder").flatten();
        let files = files.map(|e| e.path());
        let models = files.filter(|p| p.extension().is_some_and(|e| e == "gguf"));
        let one = |path: PathBuf| {
            let id = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            Offer {
                path,
                ..offer(&id, &Opener::default())
            }
        };
        models.map(one).collect()
    }

    fn pull(&self, name: &str, tell: &mut dyn FnMut(&str, u64, u64)) -> Result<Offer, String> {
        if name == "nobody/nothing" {
            return Err("there is no such repository".to_owned());
        }
        (0..=4).for_each(|i| tell("model.gguf", i, 4));
        Ok(offer(name, &Opener::default()))
    }

    fn link(&self, file: &Path, name: &str) -> Result<(), String> {
        let place = self.0.join(format!("{name}.gguf"));
        std::fs::copy(file, place)
            .map(|_| ())
            .map_err(|e| e.to_string())
    }

    fn remove(&self, file: &Path) -> Result<(), String> {
        std::fs::remove_file(file).map_err(|e| e.to_string())
    }

    fn uploads(&self) -> Option<PathBuf> {
        Some(self.0.join("sent"))
    }
}

fn folder(path: &Path, changes: bool) -> String {
    std::fs::write(path.join("one.gguf"), "one").expect("a file");
    let options = ServerOptions {
        models: ModelLimits {
            changes,
            ..ModelLimits::default()
        },
        ..options()
    };
    let library: Arc<dyn Library> = Arc::new(Folder(path.to_owned()));
    let stock = Stock {
        offers: Vec::new(),
        library: Some(library),
    };
    start(options, stock)
}

#[test]
fn models_of_a_folder_come_and_go_with_their_files() {
    let path = tempfile::tempdir().expect("a folder");
    let base = folder(path.path(), false);
    answered(&base, "one");
    assert_eq!(ask(&base, "two").status, 404);
    std::fs::write(path.path().join("two.gguf"), "two").expect("a file");
    answered(&base, "two");
    assert_eq!(statuses(&base).len(), 2);
    post_with(&base, "/models/unload", &json!({"model": "two"}), &[]);
    std::fs::remove_file(path.path().join("two.gguf")).expect("a file");
    assert_eq!(statuses(&base).len(), 1);
    for (call, body) in [
        ("/api/pull", json!({"model": "a/b"})),
        ("/api/copy", json!({"source": "one", "destination": "x"})),
        ("/api/create", json!({"model": "x", "from": "one"})),
    ] {
        let refused = post_with(&base, call, &body, &[]);
        assert_eq!(refused.status, 501, "{call}: {}", refused.text);
        assert!(refused.text.contains("--allow-pull"), "{}", refused.text);
    }
}

#[test]
fn models_are_pulled_made_copied_and_removed_where_that_is_allowed() {
    let path = tempfile::tempdir().expect("a folder");
    let base = folder(path.path(), true);
    let call = |call: &str, body: Value| post_with(&base, call, &body, &[]);
    let pulled = call("/api/pull", json!({"model": "hf.co/user/name:q4"}));
    assert_eq!(pulled.status, 200, "{}", pulled.text);
    assert!(
        pulled.text.trim_end().ends_with("{\"status\":\"success\"}"),
        "{}",
        pulled.text
    );
    answered(&base, "user/name:q4");
    let lost = call("/api/pull", json!({"model": "nobody/nothing"}));
    assert!(lost.text.contains("no such repository"), "{}", lost.text);
    let lost = call(
        "/api/pull",
        json!({"model": "nobody/nothing", "stream": false}),
    );
    assert_eq!(lost.status, 400, "{}", lost.text);
    let copied = call("/api/copy", json!({"source": "one", "destination": "two"}));
    assert_eq!(copied.status, 200, "{}", copied.text);
    answered(&base, "two");
    // A file that was sent.
    let bytes = b"a model";
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let blob = format!("/api/blobs/sha256:{hex}");
    let send = |path: &str| {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build();
        let agent: ureq::Agent = agent.into();
        agent
            .post(format!("{base}{path}"))
            .send(&bytes[..])
            .expect("an answer")
            .status()
            .as_u16()
    };
    assert_eq!(send(&blob), 201);
    assert_eq!(send(&format!("/api/blobs/sha256:{}", "0".repeat(64))), 400);
    assert_eq!(send("/api/blobs/sha256:..%2F..%2Fetc"), 400);
    let made = call(
        "/api/create",
        json!({"model": "three", "files": {"x.gguf": format!("sha256:{hex}")}}),
    );
    assert_eq!(made.status, 200, "{}", made.text);
    answered(&base, "three");
    let refused = call(
        "/api/create",
        json!({"model": "four", "from": "one", "template": "{{ x }}"}),
    );
    assert_eq!(refused.status, 400, "{}", refused.text);
    let mut names: Vec<String> = statuses(&base).into_iter().map(|s| s.0).collect();
    names.sort();
    assert_eq!(names, ["one", "three", "two", "user/name:q4"]);
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .allow_non_standard_methods(true)
        .build()
        .into();
    let removed = agent
        .delete(format!("{base}/api/delete"))
        .force_send_body()
        .header("content-type", "application/json")
        .send(json!({"model": "two"}).to_string());
    assert_eq!(removed.expect("an answer").status().as_u16(), 200);
    assert!(!path.path().join("two.gguf").exists());
    assert_eq!(ask(&base, "two").status, 404);
}
