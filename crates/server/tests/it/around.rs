//! What surrounds an answer: models without templates, work in the background, progress, cuts, TLS.

use std::time::{Duration, Instant};

use crate::common::{ask, demo, get, get_from, options, post, post_with, start, stream};
use serde_json::{Value, json};
use tokkata::ChatTemplate;
use tokkata_server::{Named, ServerOptions};

const LARGER: &str = "Which is larger, 482 or 1204?";

/// The model in the box with a template that shows no tools.
fn plain() -> Named {
    let mut named = demo();
    let text = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    let template = ChatTemplate::parse(text).expect("a template");
    named.service.set_template(Some(template));
    named.borrowed_template = true;
    named
}

#[test]
fn tools_are_told_in_words_where_the_template_shows_none() {
    let server = start(options(), vec![plain()]);
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}}});
    let body = json!({
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool], "tool_choice": "required", "max_tokens": 120,
    });
    let shown = post_with(&server, "/apply-template", &body, &[]).json();
    let prompt = shown["prompt"].as_str().expect("a prompt");
    assert!(prompt.contains("You may call tools.") && prompt.contains("get_weather"));
    let reply = post_with(&server, "/v1/chat/completions", &body, &[]);
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    let call = &reply["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "get_weather", "{reply}");
    let warnings = reply["warnings"].to_string();
    assert!(
        warnings.contains("chatml") && warnings.contains("in words"),
        "{warnings}"
    );
}

#[test]
fn names_for_templates_are_those_of_the_request_before_the_server_s() {
    let mut named = demo();
    let template = ChatTemplate::parse("{{ mood }} {{ place }} {{ enable_thinking }}");
    named
        .service
        .set_template(Some(template.expect("a template")));
    let names = json!({"mood": "calm", "place": "here", "enable_thinking": false});
    let server = ServerOptions {
        template_names: names.as_object().expect("it is one").clone(),
        ..options()
    };
    let server = start(server, vec![named]);
    let shown = |names: Value| {
        let body =
            json!({"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": names});
        let shown = post_with(&server, "/apply-template", &body, &[]).json();
        shown["prompt"].as_str().expect("a prompt").to_owned()
    };
    assert_eq!(shown(json!({})).to_lowercase(), "calm here false");
    let other = shown(json!({"mood": "wild", "enable_thinking": true}));
    assert_eq!(other.to_lowercase(), "wild here true");
}

#[test]
fn a_response_is_made_in_the_background_and_can_be_ended() {
    let body = json!({"input": LARGER, "background": true, "max_output_tokens": 40});
    let begun = ask("/v1/responses", &body);
    assert_eq!(
        (&begun["status"], &begun["background"]),
        (&json!("queued"), &json!(true))
    );
    let path = format!("/v1/responses/{}", begun["id"].as_str().expect("an id"));
    let done = until(&path, "completed");
    let text = done["output"][0]["content"][0]["text"].as_str();
    assert!(text.is_some_and(|t| t.contains("1204")), "{done}");
    let long = json!({"input": LARGER, "background": true, "ignore_eos": true});
    let begun = ask("/v1/responses", &long);
    let path = format!("/v1/responses/{}", begun["id"].as_str().expect("an id"));
    let ended = post(&format!("{path}/cancel"), &json!({})).json();
    assert_eq!(ended["status"], "cancelled");
    assert_eq!(get(&path).json()["status"], "cancelled");
    let refused = post(
        "/v1/responses",
        &json!({"input": "a", "background": true, "store": false}),
    );
    assert_eq!(refused.status, 400);
}

fn until(path: &str, status: &str) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let now = get(path).json();
        if now["status"] == status {
            return now;
        }
        assert!(Instant::now() < end, "{now}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn progress_ends_with_the_whole_prompt() {
    let long = LARGER.repeat(8);
    let mut body = json!({"messages": [{"role": "user", "content": long}], "max_tokens": 4});
    body["return_progress"] = true.into();
    body["timings_per_token"] = true.into();
    let chunks = stream("/v1/chat/completions", &body);
    let progress = |chunks: &[Value]| -> Vec<Value> {
        let all = chunks.iter().map(|c| c["prompt_progress"].clone());
        all.filter(Value::is_object).collect()
    };
    let first = progress(&chunks);
    let last = first.last().expect("progress");
    assert_eq!(last["processed"], last["total"]);
    let again = progress(&stream("/v1/chat/completions", &body));
    let reused = again[0]["cache"].as_u64().expect("a number");
    assert!(reused > 0 && last["cache"] == 0, "{first:?} {again:?}");
    let all = |cached: &Value| again.iter().all(|p| p["cache"] == *cached);
    assert!(all(&again[0]["cache"]), "{again:?}");
    assert!(chunks[0].get("timings").is_none() && chunks[chunks.len() - 1]["timings"].is_object());
}

#[test]
fn vectors_come_from_a_model_that_writes_only_where_it_was_opened_for_both() {
    let refused = post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!(refused.status, 501, "{}", refused.text);
}

#[test]
fn prompts_are_cut_where_that_was_asked_for() {
    let cut = |side: &str| {
        let body = json!({"prompt": "one two three four five six seven", "max_tokens": 1, "echo": true,
            "truncate_prompt_tokens": 2, "truncation_side": side});
        ask("/v1/completions", &body)["choices"][0]["text"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (left, right) = (cut("left"), cut("right"));
    assert!(left.contains("seven") && !left.contains("one"), "{left}");
    assert!(!right.contains("seven"), "{right}");
    let refused = post(
        "/v1/completions",
        &json!({"prompt": "a", "truncate_prompt_tokens": 100_000}),
    );
    assert_eq!(refused.status, 400);
}

#[test]
fn one_seed_for_all_gives_the_same_answers() {
    let options = ServerOptions {
        seed: Some(42),
        sampling: tokkata::Sampling::default(),
        ..options()
    };
    let server = start(options, vec![demo()]);
    let body = json!({"prompt": "Once upon a time", "max_tokens": 12});
    let text =
        || post_with(&server, "/v1/completions", &body, &[]).json()["choices"][0]["text"].clone();
    assert_eq!(text(), text());
    assert_eq!(
        get_from(&server, "/props", &[]).json()["default_generation_settings"]["params"]["seed"],
        42
    );
}

#[test]
fn the_document_names_paths_that_are_there() {
    let document = get("/openapi.json").json();
    let paths = document["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        let status = match methods["post"].is_object() {
            true => post(path, &json!({})).status,
            false => get(path).status,
        };
        assert_ne!(status, 404, "{path}");
        assert_ne!(status, 405, "{path}");
    }
}

#[test]
fn tls_is_spoken_with_the_files_that_were_given() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let (certificate, key) = (data.join("certificate.pem"), data.join("key.pem"));
    let with = |tls| ServerOptions {
        tls: Some(tls),
        ..options()
    };
    let server = start(with((certificate.clone(), key.clone())), vec![demo()]);
    let port = server.rsplit(':').next().expect("a port");
    let pem = std::fs::read(&certificate).expect("a certificate");
    let root = ureq::tls::Certificate::from_pem(&pem).expect("PEM");
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::new_with_certs(&[root]))
        .build();
    let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let mut reply = agent
        .get(format!("https://localhost:{port}/health"))
        .call()
        .expect("TLS");
    let text = reply.body_mut().read_to_string().expect("a body");
    assert_eq!(text, "{\"status\":\"ok\"}");
    assert!(
        ureq::get(format!("http://localhost:{port}/health"))
            .call()
            .is_err()
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let swapped = runtime.block_on(tokkata_server::Server::bind(
        with((key, certificate)),
        vec![demo()],
    ));
    let why = swapped.err().expect("no certificate").to_string();
    assert!(
        why.contains("key.pem") && why.contains("certificate"),
        "{why}"
    );
}

#[test]
fn paths_are_served_with_and_without_what_a_proxy_leaves_before_them() {
    let with = |root: &str, prefix: &str| ServerOptions {
        root: root.to_owned(),
        prefix: prefix.to_owned(),
        keys: vec!["secret".to_owned()],
        ..options()
    };
    let status = |server: &str, path: &str, key: &str| {
        let key = format!("Bearer {key}");
        get_from(server, path, &[("authorization", &key)]).status
    };
    let server = start(with("/llm/", ""), vec![demo()]);
    for path in ["/v1/models", "/llm/v1/models"] {
        assert_eq!(status(&server, path, "secret"), 200, "{path}");
        assert_eq!(status(&server, path, "other"), 401, "{path}");
    }
    for path in ["/health", "/llm/health", "/llm/", "/llm"] {
        assert_eq!(status(&server, path, ""), 200, "{path}");
    }
    assert_eq!(status(&server, "/llmv1/models", "secret"), 404);
    let server = start(with("/llm", "/own"), vec![demo()]);
    for (path, want) in [
        ("/own/v1/models", 200),
        ("/llm/own/v1/models", 200),
        ("/v1/models", 404),
        ("/llm/v1/models", 404),
    ] {
        assert_eq!(status(&server, path, "secret"), want, "{path}");
    }
    assert_eq!(status(&server, "/own/health", ""), 200);
    let body = json!({"max_tokens": 1});
    let wrong = post_with(&server, "/llm/own/v1/messages", &body, &[]).json();
    assert_eq!(wrong["type"], "error", "Anthropic's shape: {wrong}");
}

#[cfg(unix)]
#[test]
fn a_socket_in_the_file_system_is_listened_at() {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use tokkata_server::{Place, Server};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("own.sock");
    // One that nobody listens at any longer.
    drop(UnixListener::bind(&path).expect("a socket"));
    let with = || ServerOptions {
        socket: Some(path.clone()),
        ..options()
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime
        .block_on(Server::bind(with(), vec![demo()]))
        .expect("a socket");
    assert_eq!(server.place(), &Place::File(path.clone()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let running = runtime.spawn(server.run(async {
        // The sender ends it either way.
        let _ = ended.await;
    }));
    let mut stream = UnixStream::connect(&path).expect("a server");
    let call = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(call.as_bytes()).expect("a call");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains("demo"),
        "{reply}"
    );
    let second = runtime.block_on(Server::bind(with(), vec![demo()]));
    let why = second.err().expect("it is taken").to_string();
    assert!(why.contains("own.sock"), "{why}");
    end.send(()).expect("it runs");
    runtime.block_on(running).expect("a task").expect("an end");
    assert!(!path.exists(), "the file stays");
}

/// The lines of a stream that begins with a call, until `until` is among them.
fn read_until(base: &str, path: &str, body: Option<&Value>, until: &str) -> String {
    use std::io::{BufRead, BufReader, Write};
    let address = base.strip_prefix("http://").expect("an address");
    let mut stream = std::net::TcpStream::connect(address).expect("a server");
    let text = body.map_or_else(String::new, Value::to_string);
    let method = if body.is_some() { "POST" } else { "GET" };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
    .expect("a request");
    let (mut reader, mut all) = (BufReader::new(stream), String::new());
    while !all.contains(until) {
        let mut line = String::new();
        assert!(
            reader.read_line(&mut line).expect("a line") > 0,
            "it ended: {all}"
        );
        all += &line;
    }
    all
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|e| e["sequence_number"].as_u64())
        .collect()
}

#[test]
fn a_stream_that_was_lost_is_taken_up_again() {
    let server = start(options(), vec![demo()]);
    let body = json!({"input": LARGER, "background": true, "stream": true, "max_output_tokens": 60, "ignore_eos": true});
    let begun = read_until(&server, "/v1/responses", Some(&body), "output_text.delta");
    let at = begun.find("\"id\":\"resp_").expect("an id") + 6;
    let id = begun[at..].split('"').next().expect("an id").to_owned();
    let path = format!("/v1/responses/{id}?stream=true&starting_after=2");
    let rest = get_from(&server, &path, &[]).events();
    let seen = numbers(&rest);
    assert_eq!(seen[0], 3);
    assert!(seen.windows(2).all(|w| w[1] == w[0] + 1), "{seen:?}");
    let last = rest.last().expect("events");
    assert_eq!(last["type"], "response.incomplete", "{last}");
    let all = get_from(&server, &format!("/v1/responses/{id}?stream=true"), &[]).events();
    assert_eq!(numbers(&all), (0..all.len() as u64).collect::<Vec<_>>());
    let deltas = all
        .iter()
        .filter(|e| e["type"] == "response.output_text.delta");
    let text: String = deltas
        .map(|e| e["delta"].as_str().unwrap_or_default())
        .collect();
    let kept = get_from(&server, &format!("/v1/responses/{id}"), &[]).json();
    assert_eq!(kept["output"][0]["content"][0]["text"], text);
    let unknown = get_from(&server, "/v1/responses/resp_x?stream=true", &[]);
    assert_eq!(unknown.status, 404);
}

#[test]
fn a_stream_that_nobody_takes_up_again_ends() {
    let options = ServerOptions {
        grace: Duration::from_millis(200),
        ..options()
    };
    let server = start(options, vec![demo()]);
    let body = json!({"input": LARGER, "background": true, "stream": true, "ignore_eos": true, "max_output_tokens": 900});
    let begun = read_until(&server, "/v1/responses", Some(&body), "output_text.delta");
    let at = begun.find("\"id\":\"resp_").expect("an id") + 6;
    let id = begun[at..].split('"').next().expect("an id").to_owned();
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = get_from(&server, &format!("/v1/responses/{id}"), &[]).json();
        let status = now["status"].as_str().unwrap_or_default().to_owned();
        assert!(
            ["in_progress", "cancelled"].contains(&status.as_str()),
            "{now}"
        );
        if status == "cancelled" {
            break;
        }
        assert!(Instant::now() < end, "{now}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The engine lets go of it before its next step, which is after the answer is said to be cancelled.
    loop {
        let slots = get_from(&server, "/slots", &[]).json();
        let slots = slots.as_array().expect("slots");
        if slots.iter().all(|s| s["is_processing"] == false) {
            break;
        }
        assert!(Instant::now() < end, "{slots:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
