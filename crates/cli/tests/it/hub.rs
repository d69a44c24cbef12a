//! `pull`, `ls`, `rm` and `-hf` against a server on loopback: what a user sees, what stays after Ctrl-C, and offline.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{made_up, stderr, tokkata};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TAG: &str = "\"00112233445566778899aabbccddeeff00112233\"";

/// What a repository holds and how the server behaves.
#[derive(Clone)]
struct Repository {
    files: Vec<(String, Vec<u8>)>,
    /// Bytes after which the first download of a file falls silent.
    stalls_after: Option<usize>,
    /// The answer to everything, where there is but one.
    status: Option<&'static str>,
}

struct Server {
    address: String,
    /// Ranges that were asked for, one for each download.
    ranges: Arc<Mutex<Vec<Option<String>>>>,
}

impl Repository {
    fn of(name: &str, bytes: Vec<u8>) -> Self {
        Repository {
            files: vec![(name.to_owned(), bytes)],
            stalls_after: None,
            status: None,
        }
    }

    fn serve(self) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let log = ranges.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (own, log) = (self.clone(), log.clone());
                std::thread::spawn(move || own.answer(&stream, &log));
            }
        });
        Server { address, ranges }
    }

    fn answer(&self, mut stream: &TcpStream, log: &Mutex<Vec<Option<String>>>) {
        let lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
        let lines: Vec<String> = lines
            .map_while(Result::ok)
            .take_while(|l| !l.is_empty())
            .collect();
        let Some((method, path)) = lines.first().and_then(|l| l.split_once(' ')) else {
            return;
        };
        let path = path.split(' ').next().unwrap_or_default();
        let head = |status: &str, length: usize, more: &str| {
            format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\netag: {TAG}\r\ncontent-length: {length}\r\n{more}\r\n"
            )
        };
        let mut send = |bytes: &[u8]| drop(stream.write_all(bytes));
        if let Some(status) = self.status {
            return send(head(status, 0, "").as_bytes());
        }
        if path.starts_with("/api/") {
            let list = self
                .files
                .iter()
                .map(|f| format!(r#"{{"rfilename":"{}"}}"#, f.0));
            let list: Vec<String> = list.collect();
            let json = format!(r#"{{"sha":"{COMMIT}","siblings":[{}]}}"#, list.join(","));
            return send((head("200 OK", json.len(), "") + &json).as_bytes());
        }
        let Some((_, data)) = self.files.iter().find(|f| path.ends_with(&f.0)) else {
            return send(head("404 Not Found", 0, "").as_bytes());
        };
        if method == "HEAD" {
            return send(head("200 OK", data.len(), "").as_bytes());
        }
        let range = lines
            .iter()
            .find_map(|l| l.to_lowercase().strip_prefix("range: ").map(str::to_owned));
        let first = {
            let mut log = log.lock().expect("no panic");
            log.push(range.clone());
            log.len() == 1
        };
        let from = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let (status, from) =
            from.map_or(("200 OK", 0), |from: usize| ("206 Partial Content", from));
        let more = format!(
            "content-range: bytes {from}-{}/{}\r\n",
            data.len() - 1,
            data.len()
        );
        send(head(status, data.len() - from, if from > 0 { &more } else { "" }).as_bytes());
        match self.stalls_after.filter(|_| first) {
            Some(bytes) => {
                send(&data[..bytes]);
                std::thread::sleep(Duration::from_secs(60));
            }
            None => send(&data[from..]),
        }
    }
}

/// The command with a cache of its own and this hub.
fn at(endpoint: &str, home: &Path) -> Command {
    let mut command = tokkata();
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", home);
    command
}

fn run(endpoint: &str, home: &Path, args: &[&str]) -> Output {
    at(endpoint, home)
        .args(args)
        .output()
        .expect("the command starts")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn tiny() -> Vec<u8> {
    let (_dir, path) = made_up("q4_0");
    std::fs::read(path).expect("a model")
}

#[test]
fn a_model_is_pulled_listed_used_offline_and_removed() {
    let bytes = tiny();
    let server = Repository::of("tiny-q4_0.gguf", bytes.clone()).serve();
    let home = tempfile::tempdir().expect("a folder");
    let path = text(&run(
        &server.address,
        home.path(),
        &["pull", "user/tiny:q4_0"],
    ));
    assert_eq!(std::fs::read(path.trim()).expect("a file"), bytes);
    assert!(
        path.contains(&format!("snapshots/{COMMIT}/tiny-q4_0.gguf")),
        "{path}"
    );

    let listed = text(&run(&server.address, home.path(), &["ls"]));
    assert!(
        listed.contains("user/tiny") && listed.contains("tiny-q4_0.gguf"),
        "{listed}"
    );
    let nowhere = "http://127.0.0.1:1";
    let offline = |args: &[&str]| {
        let mut command = at(nowhere, home.path());
        command.env("HF_HUB_OFFLINE", "1").args(args);
        command.output().expect("the command starts")
    };
    let shown = text(&offline(&["inspect", "-hf", "user/tiny:q4_0"]));
    assert!(shown.contains("llama"), "{shown}");

    text(&run(nowhere, home.path(), &["rm", "user/tiny"]));
    for name in ["ls", "list"] {
        let empty = offline(&[name]);
        assert_eq!(text(&empty), "");
        assert!(stderr(&empty).starts_with("no models are cached"));
    }
    let gone = offline(&["inspect", "-hf", "user/tiny:q4_0"]);
    assert_eq!(gone.status.code(), Some(1));
    let error = stderr(&gone);
    assert!(
        error.contains("user/tiny") && error.contains("HF_HUB_OFFLINE"),
        "{error}"
    );
    assert_eq!(server.ranges.lock().expect("no panic").len(), 1);
}

#[cfg(unix)]
#[test]
fn after_ctrl_c_a_download_goes_on_where_it_was() {
    let bytes = tiny();
    let half = bytes.len() / 2;
    let repository = Repository {
        stalls_after: Some(half),
        ..Repository::of("tiny.gguf", bytes.clone())
    };
    let server = repository.serve();
    let home = tempfile::tempdir().expect("a folder");
    let mut command = at(&server.address, home.path());
    command.args(["pull", "user/tiny"]).stderr(Stdio::null());
    let mut child = command.spawn().expect("the command starts");
    let blobs = home.path().join("hub/models--user--tiny/blobs");
    let part = blobs.join(format!("{}.incomplete", TAG.trim_matches('"')));
    let start = Instant::now();
    while part.metadata().map_or(0, |m| m.len()) < half as u64 {
        assert!(start.elapsed() < Duration::from_secs(50), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status();
    assert!(sent.expect("kill").success());
    let ended = child.wait().expect("an end");
    assert!(!ended.success(), "{ended}");
    assert_eq!(part.metadata().expect("what came stays").len(), half as u64);

    let listed = text(&run(&server.address, home.path(), &["ls"]));
    assert!(listed.contains("unfinished"), "{listed}");
    let path = text(&run(&server.address, home.path(), &["pull", "user/tiny"]));
    assert_eq!(std::fs::read(path.trim()).expect("a file"), bytes);
    let ranges = server.ranges.lock().expect("no panic").clone();
    assert_eq!(ranges, [None, Some(format!("bytes={half}-"))]);
}

#[test]
fn what_cannot_be_had_is_said_in_one_line() {
    let home = tempfile::tempdir().expect("a folder");
    let refused = |server: &Server, args: &[&str], words: &[&str]| {
        let output = run(&server.address, home.path(), args);
        let error = stderr(&output);
        println!("{error}");
        assert_eq!(
            (output.status.code(), error.lines().count()),
            (Some(1), 1),
            "{error}"
        );
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    };
    let all = |status| {
        Repository {
            status: Some(status),
            ..Repository::of("x", Vec::new())
        }
        .serve()
    };
    refused(
        &all("401 Unauthorized"),
        &["pull", "user/closed"],
        &["user/closed", "HF_TOKEN"],
    );
    refused(
        &all("404 Not Found"),
        &["pull", "user/none"],
        &["user/none", "check the name"],
    );
    let other = Repository::of("readme.md", b"text".to_vec()).serve();
    refused(&other, &["pull", "user/other"], &["user/other"]);
    let quants = Repository::of("m-q8_0.gguf", tiny()).serve();
    refused(&quants, &["pull", "user/m:q4_k_m"], &["q4_k_m", "q8_0"]);
    let page = Repository::of("page.gguf", b"<html>not a model</html>".to_vec()).serve();
    refused(&page, &["inspect", "-hf", "user/page"], &["page.gguf"]);
}

#[test]
fn a_model_has_many_names() {
    let bytes = tiny();
    let repository = Repository {
        files: vec![
            ("m-q4_k_m.gguf".to_owned(), b"another".to_vec()),
            ("m-odd.gguf".to_owned(), bytes),
        ],
        ..Repository::of("x", Vec::new())
    };
    let server = repository.serve();
    let address = format!("{}/user/m/resolve/main/m-odd.gguf", server.address);
    for args in [
        &["inspect", "-hf", "user/m", "-hff", "m-odd.gguf"][..],
        &["inspect", "-mu", &address],
        &[
            "inspect",
            "-hf",
            "user/m",
            "-hff",
            "m-odd.gguf",
            "--offline",
        ],
    ] {
        let home = tempfile::tempdir().expect("a folder");
        if args.contains(&"--offline") {
            let error = stderr(&run(&server.address, home.path(), args));
            assert!(error.contains("is not in the cache"), "{error}");
            continue;
        }
        let shown = text(&run(&server.address, home.path(), args));
        assert!(shown.contains("llama"), "{args:?}: {shown}");
    }
    let home = tempfile::tempdir().expect("a folder");
    let error = stderr(&run(
        &server.address,
        home.path(),
        &["inspect", "llama3.2:1b", "--offline"],
    ));
    assert!(
        error.contains("Llama-3.2-1B-Instruct-GGUF is not in the cache"),
        "{error}"
    );
    let error = stderr(&run(
        &server.address,
        home.path(),
        &["inspect", "-mu", "https://elsewhere/m.gguf"],
    ));
    assert!(error.contains("give -m FILE"), "{error}");
}
