//! What every call goes through: keys, hosts, origins, limits, and readers that leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{demo, get_from, options, post_with, start};
use serde_json::{Value, json};
use tokkata_server::{Hosts, ServerOptions};

fn question() -> Value {
    json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
}

#[test]
fn a_key_guards_all_but_the_signs_of_life() {
    let options = ServerOptions {
        keys: vec!["secret".to_owned()],
        ..options()
    };
    let server = start(options, vec![demo()]);
    assert_eq!(get_from(&server, "/health", &[]).status, 200);
    assert_eq!(get_from(&server, "/ready", &[]).status, 200);
    for path in ["/v1/models", "/metrics", "/props", "/nowhere"] {
        assert_eq!(get_from(&server, path, &[]).status, 401, "{path}");
    }
    let path = "/v1/chat/completions";
    let refused = post_with(
        &server,
        path,
        &question(),
        &[("authorization", "Bearer wrong")],
    );
    assert_eq!(refused.status, 401);
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    for header in [("authorization", "Bearer secret"), ("x-api-key", "secret")] {
        assert_eq!(post_with(&server, path, &question(), &[header]).status, 200);
    }
}

#[test]
fn other_hosts_pages_and_kinds_of_bodies_are_refused() {
    let server = crate::common::shared();
    let path = "/v1/chat/completions";
    let with =
        |name: &str, value: &str| post_with(server, path, &question(), &[(name, value)]).status;
    assert_eq!(with("host", "evil.example"), 403);
    assert_eq!(with("origin", "http://evil.example"), 403);
    let own = server.strip_prefix("http://").expect("an address");
    assert_eq!(with("origin", &format!("http://{own}")), 200);
    let plain = raw(
        server,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    );
    assert!(plain.starts_with("HTTP/1.1 415"), "{plain}");
}

#[test]
fn bodies_that_are_too_large_or_too_deep_are_refused() {
    let options = ServerOptions {
        body_bytes: 1000,
        hosts: Hosts {
            names: Vec::new(),
            any: true,
        },
        ..options()
    };
    let server = start(options, vec![demo()]);
    let large = json!({"prompt": "a".repeat(2000)});
    assert_eq!(
        post_with(&server, "/v1/completions", &large, &[]).status,
        413
    );
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: any.example\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{deep}",
        deep.len()
    );
    assert!(raw(&server, &request).starts_with("HTTP/1.1 400"));
}

#[test]
fn a_full_queue_says_when_to_come_back() {
    let options = ServerOptions {
        queue: 0,
        ..options()
    };
    let server = start(options, vec![demo()]);
    let body = json!({"prompt": "a", "n": 5, "max_tokens": 1});
    let refused = post_with(&server, "/v1/completions", &body, &[]);
    assert_eq!(refused.status, 503);
    let seconds: u64 = refused
        .header("retry-after")
        .expect("a time")
        .parse()
        .expect("a number");
    assert!(seconds >= 1);
    // Places that were taken for the refused call are free again.
    let body = json!({"prompt": "a", "n": 4, "max_tokens": 1});
    assert_eq!(
        post_with(&server, "/v1/completions", &body, &[]).status,
        200
    );
}

#[test]
fn who_leaves_is_not_answered_any_longer() {
    let server = start(options(), vec![demo()]);
    for stream in [true, false] {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 1000, "ignore_eos": true, "stream": stream}).to_string();
        let mut socket = connect(&server);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(head.as_bytes()).expect("sent");
        wait(&server, |running| running == 1);
        drop(socket);
        wait(&server, |running| running == 0);
    }
    let ended = get_from(&server, "/metrics", &[]).text;
    assert!(ended.contains("finished_reason=\"abort\"} 2"), "{ended}");
}

fn wait(server: &str, enough: impl Fn(u64) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = get_from(server, "/v1/metrics", &[]).json();
        if now["models"][0]["running"].as_u64().is_some_and(&enough) {
            return;
        }
        assert!(Instant::now() < end, "{now}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_unknown_model_is_an_error_only_where_it_matters() {
    let named = |name: &str| json!({"model": name, "prompt": "a", "max_tokens": 1});
    let lenient = post_with(
        crate::common::shared(),
        "/v1/completions",
        &named("gpt-9"),
        &[],
    );
    assert_eq!(lenient.json()["model"], "demo");
    let options = ServerOptions {
        strict_model: true,
        ..options()
    };
    let strict = start(options, vec![demo()]);
    let refused = post_with(&strict, "/v1/completions", &named("gpt-9"), &[]);
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (404, &json!("model"))
    );
    for name in ["demo", "small", "demo:latest"] {
        assert_eq!(
            post_with(&strict, "/v1/completions", &named(name), &[]).status,
            200
        );
    }
}

#[test]
fn one_client_does_not_take_all_places() {
    let options = ServerOptions {
        per_client: Some(1),
        ..options()
    };
    let server = start(options, vec![demo()]);
    let slow = json!({"prompt": "a", "max_tokens": 300, "ignore_eos": true});
    let other = server.clone();
    let first = std::thread::spawn(move || post_with(&other, "/v1/completions", &slow, &[]).status);
    wait(&server, |running| running == 1);
    let second = post_with(
        &server,
        "/v1/completions",
        &json!({"prompt": "a", "max_tokens": 1}),
        &[],
    );
    assert_eq!(second.status, 429);
    assert!(second.header("retry-after").is_some());
    assert_eq!(first.join().expect("no panic"), 200);
    let third = post_with(
        &server,
        "/v1/completions",
        &json!({"prompt": "a", "max_tokens": 1}),
        &[],
    );
    assert_eq!(third.status, 200);
}

fn connect(server: &str) -> TcpStream {
    TcpStream::connect(server.strip_prefix("http://").expect("an address")).expect("a server")
}

fn raw(server: &str, request: &str) -> String {
    let mut socket = connect(server);
    socket.write_all(request.as_bytes()).expect("sent");
    let mut reply = String::new();
    // The server may close as soon as it has refused.
    let _ = socket.read_to_string(&mut reply);
    reply
}
