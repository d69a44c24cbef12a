//! Downloads from a real server on loopback: what it can do wrong, and what is in the cache afterwards.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use tokkata_hub::{Hub, HubError, Wanted};

fn sha256(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

/// A request's path and headers.
#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

type Answer = dyn Fn(&Asked, usize) -> Vec<u8> + Send + Sync;

/// A server that answers by a function of the request and of how often its path was asked for by this method.
struct Server {
    address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn start(answer: impl Fn(&Asked, usize) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, answer): (_, Arc<Answer>) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (log.clone(), answer.clone());
                std::thread::spawn(move || serve(&stream, &log, &*answer));
            }
        });
        Server { address, asked }
    }

    fn hub(&self, folder: &std::path::Path) -> Hub {
        Hub {
            endpoint: self.address.clone(),
            retries: 3,
            ..Hub::new(folder)
        }
    }

    fn asked(&self, method: &str, path: &str) -> Vec<Asked> {
        let all = self.asked.lock().expect("no panic");
        let fits = |a: &&Asked| a.method == method && a.path.contains(path);
        all.iter().filter(fits).cloned().collect()
    }
}

fn serve(stream: &TcpStream, log: &Mutex<Vec<Asked>>, answer: &Answer) {
    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) < 3 {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let asked = Asked {
        method,
        path,
        headers,
    };
    let before = {
        let mut log = log.lock().expect("no panic");
        let same = log
            .iter()
            .filter(|a| a.method == asked.method && a.path == asked.path)
            .count();
        log.push(asked.clone());
        same
    };
    let mut stream = stream;
    let _ = stream.write_all(&answer(&asked, before));
}

/// An answer; a `HEAD` has no body whatever its length says.
fn answer(asked: &Asked, status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    if !headers.iter().any(|h| h.0 == "content-length") {
        text += &format!("content-length: {}\r\n", body.len());
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    let mut bytes = (text + "\r\n").into_bytes();
    if asked.method != "HEAD" {
        bytes.extend_from_slice(body);
    }
    bytes
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FILE: &str = "m-q8_0.gguf";

fn content() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

fn listing(asked: &Asked) -> Vec<u8> {
    let json = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{FILE}"}},{{"rfilename":"../evil.gguf"}}]}}"#
    );
    answer(asked, "200 OK", &[], json.as_bytes())
}

/// What a hub without faults says: a redirect with the hash, then the bytes, from where they are asked for.
fn good(asked: &Asked, data: &[u8]) -> Vec<u8> {
    let hash = format!("\"{}\"", sha256(data));
    let size = data.len().to_string();
    if asked.path.starts_with("/api/") {
        return listing(asked);
    }
    if !asked.path.starts_with("/cdn/") {
        let headers = [
            ("location", "/cdn/x"),
            ("x-linked-etag", &hash),
            ("x-linked-size", &size),
            ("etag", "\"other\""),
        ];
        return answer(asked, "302 Found", &headers, b"");
    }
    let range = asked.headers.get("range").and_then(|r| {
        r.strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse::<usize>()
            .ok()
    });
    match range {
        Some(from) if from < data.len() => {
            let range = format!("bytes {from}-{}/{}", data.len() - 1, data.len());
            answer(
                asked,
                "206 Partial Content",
                &[("content-range", &range)],
                &data[from..],
            )
        }
        Some(_) => answer(asked, "416 Range Not Satisfiable", &[], b""),
        None => answer(asked, "200 OK", &[("content-length", &size)], data),
    }
}

fn wanted() -> Wanted {
    "user/model:q8_0".parse().expect("a name")
}

fn pull(hub: &Hub) -> tokkata_hub::Result<std::path::PathBuf> {
    hub.pull(&wanted(), &mut |_, _, _| {})
}

#[test]
fn a_file_is_kept_as_the_hub_keeps_it_and_asked_for_once() {
    let server = Server::start(|asked, _| good(asked, &content()));
    let folder = tempfile::tempdir().expect("a folder");
    let hub = server.hub(folder.path());
    let (mut last, mut names) = (0, Vec::new());
    let path = hub.pull(&wanted(), &mut |name, done, total| {
        assert_eq!(total, 400_000);
        last = done;
        names.push(name.to_owned());
    });
    let path = path.expect("a file");
    assert_eq!((last, names[0].as_str()), (400_000, FILE));
    assert_eq!(std::fs::read(&path).expect("bytes"), content());
    let root = folder.path().join("models--user--model");
    assert_eq!(path, root.join("snapshots").join(COMMIT).join(FILE));
    assert_eq!(
        std::fs::read_to_string(root.join("refs/main")).expect("a ref"),
        COMMIT
    );
    assert!(root.join("blobs").join(sha256(&content())).is_file());
    assert!(
        !folder
            .path()
            .parent()
            .expect("a parent")
            .join("evil.gguf")
            .exists()
    );
    let before = server.asked("GET", "/cdn/").len();
    assert_eq!(pull(&hub).expect("again"), path);
    assert_eq!(server.asked("GET", "/cdn/").len(), before);
    let offline = Hub {
        offline: true,
        endpoint: "http://127.0.0.1:1".to_owned(),
        ..hub.clone()
    };
    assert_eq!(pull(&offline).expect("from the cache"), path);
    let listed = hub.cache.list().expect("a list");
    assert_eq!(
        (
            listed[0].repo.as_str(),
            listed[0].bytes,
            listed[0].files.len()
        ),
        ("user/model", 400_000, 1)
    );
    assert_eq!(hub.cache.remove("user/model").expect("bytes"), 400_000);
    assert!(matches!(pull(&offline), Err(HubError::Offline { .. })));
    assert!(matches!(
        hub.cache.remove("user/model"),
        Err(HubError::NotCached { .. })
    ));
}

#[test]
fn a_dropped_connection_is_taken_up_where_it_broke() {
    let server = Server::start(|asked, before| {
        let data = content();
        let mut whole = good(asked, &data);
        if asked.method == "GET" && asked.path.starts_with("/cdn/") && before < 2 {
            whole.truncate(whole.len() / 2);
        }
        whole
    });
    let folder = tempfile::tempdir().expect("a folder");
    let path = pull(&server.hub(folder.path())).expect("a file");
    assert_eq!(std::fs::read(path).expect("bytes"), content());
    let ranges: Vec<_> = server
        .asked("GET", "/cdn/")
        .iter()
        .map(|a| a.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges.len(), 3);
    assert!(
        ranges[0].is_none() && ranges[1].is_some() && ranges[2] > ranges[1],
        "{ranges:?}"
    );
}

#[test]
fn what_an_earlier_run_left_is_not_asked_for_again() {
    let server = Server::start(|asked, _| good(asked, &content()));
    let folder = tempfile::tempdir().expect("a folder");
    let blobs = folder.path().join("models--user--model/blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let part = blobs.join(format!("{}.incomplete", sha256(&content())));
    std::fs::write(&part, &content()[..1000]).expect("a file");
    pull(&server.hub(folder.path())).expect("a file");
    assert_eq!(
        server.asked("GET", "/cdn/")[0].headers["range"],
        "bytes=1000-"
    );
    assert!(!part.exists());
}

#[test]
fn wrong_bytes_and_lengths_never_become_a_file() {
    let wrong = |kind: &'static str| {
        Server::start(move |asked, _| {
            let mut data = content();
            let right = good(asked, &data);
            if asked.method != "GET" || !asked.path.starts_with("/cdn/") {
                return right;
            }
            match kind {
                "bytes" => data[5] ^= 1,
                "short" => data.truncate(1000),
                _ => data.extend_from_slice(b"more"),
            }
            answer(asked, "200 OK", &[], &data)
        })
    };
    for (kind, text) in [
        ("bytes", "SHA-256"),
        ("short", "found 1000 bytes"),
        ("long", "found 400004 bytes"),
    ] {
        let server = wrong(kind);
        let folder = tempfile::tempdir().expect("a folder");
        let hub = Hub {
            retries: 1,
            ..server.hub(folder.path())
        };
        let error = pull(&hub).expect_err(kind).to_string();
        assert!(error.contains(text), "{kind}: {error}");
        let hash = sha256(&content());
        assert!(
            !folder
                .path()
                .join("models--user--model/blobs")
                .join(hash)
                .exists(),
            "{kind}"
        );
    }
}

#[test]
fn refusals_say_what_to_do() {
    for (status, text) in [
        ("401 Unauthorized", "HF_TOKEN"),
        ("403 Forbidden", "HF_TOKEN"),
        ("404 Not Found", "check the name"),
        ("418 I'm a teapot", "status 418"),
    ] {
        let server = Server::start(move |asked, _| answer(asked, status, &[], b""));
        let folder = tempfile::tempdir().expect("a folder");
        let error = pull(&server.hub(folder.path()))
            .expect_err(status)
            .to_string();
        assert!(error.contains(text), "{error}");
        assert_eq!(
            server.asked("GET", "/").len(),
            1,
            "{status} is asked for once"
        );
    }
}

#[test]
fn a_busy_hub_is_asked_again() {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let server = Server::start(move |asked, _| match seen.fetch_add(1, Ordering::SeqCst) {
        0 => answer(asked, "429 Too Many Requests", &[("retry-after", "0")], b""),
        1 => answer(asked, "503 Service Unavailable", &[], b""),
        _ => good(asked, &content()),
    });
    let folder = tempfile::tempdir().expect("a folder");
    pull(&server.hub(folder.path())).expect("a file");
    let busy = Server::start(|asked, _| {
        answer(
            asked,
            "429 Too Many Requests",
            &[("retry-after", "600")],
            b"",
        )
    });
    let error = pull(&busy.hub(folder.path()))
        .expect_err("busy")
        .to_string();
    assert!(error.contains("wait 600 s"), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let other = Server::start(|asked, _| good(asked, &content()));
    let target = format!("{}/cdn/x", other.address);
    let server = Server::start(move |asked, _| {
        if asked.path.starts_with("/api/") {
            return listing(asked);
        }
        let (hash, size) = (sha256(&content()), "400000");
        let headers = [
            ("location", target.as_str()),
            ("x-linked-etag", &hash),
            ("x-linked-size", size),
        ];
        answer(asked, "302 Found", &headers, b"")
    });
    let folder = tempfile::tempdir().expect("a folder");
    let hub = Hub {
        token: Some("secret".to_owned()),
        ..server.hub(folder.path())
    };
    pull(&hub).expect("a file");
    let own = server.asked("GET", "/");
    assert!(own.iter().all(|a| {
        a.headers
            .get("authorization")
            .is_some_and(|t| t == "Bearer secret")
    }));
    let foreign = other.asked("GET", "/");
    assert!(
        !foreign.is_empty()
            && foreign
                .iter()
                .all(|a| !a.headers.contains_key("authorization"))
    );
}

#[test]
fn endless_redirects_end() {
    let server =
        Server::start(|asked, _| answer(asked, "302 Found", &[("location", "/again")], b""));
    let folder = tempfile::tempdir().expect("a folder");
    let hub = Hub {
        retries: 0,
        ..server.hub(folder.path())
    };
    let error = pull(&hub).expect_err("a circle").to_string();
    assert!(error.contains("redirects"), "{error}");
}

#[test]
fn two_at_once_download_one_file_once() {
    let server = Server::start(|asked, _| {
        if asked.method == "GET" && asked.path.starts_with("/cdn/") {
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        good(asked, &content())
    });
    let folder = tempfile::tempdir().expect("a folder");
    let hub = server.hub(folder.path());
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| pull(&hub)), scope.spawn(|| pull(&hub))];
        for one in both {
            let path = one.join().expect("no panic").expect("a file");
            assert_eq!(std::fs::read(path).expect("bytes"), content());
        }
    });
    assert_eq!(server.asked("GET", "/cdn/").len(), 1);
}
