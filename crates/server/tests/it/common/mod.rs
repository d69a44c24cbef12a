//! A server of the model in the box, and a client for it.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use tokkata::{Model, OpenOptions};
use tokkata_server::{Named, Server, ServerOptions, Stock};

/// The model in the box, loaded.
pub fn demo() -> Named {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.gguf");
    let options = OpenOptions {
        seqs: 4,
        ctx: NonZeroU32::new(1024),
        threads: Some(1),
        ..OpenOptions::default()
    };
    let model = Model::open(path, &options).expect("the model in the box");
    Named {
        id: "demo".to_owned(),
        aliases: vec!["small".to_owned()],
        tags: Vec::new(),
        service: model.serve().expect("a thread"),
        borrowed_template: false,
    }
}

/// Starts a server of these models; it runs as long as the tests do.
pub fn start(options: ServerOptions, models: impl Into<Stock> + Send + 'static) -> String {
    let (give, take) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let server = Server::bind(options, models).await.expect("a port");
            give.send(server.place().address().expect("an address"))
                .expect("a listener");
            server.run(std::future::pending()).await.expect("it runs");
        });
    });
    format!("http://{}", take.recv().expect("an address"))
}

/// Options of a test: any port, and the likeliest tokens.
pub fn options() -> ServerOptions {
    ServerOptions {
        port: 0,
        sampling: tokkata::Sampling::greedy(),
        slots: true,
        ..ServerOptions::default()
    }
}

/// The server that most tests of a file share.
pub fn shared() -> &'static str {
    static SERVER: OnceLock<String> = OnceLock::new();
    SERVER.get_or_init(|| start(options(), vec![demo()]))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into()
}

/// What came back.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
}

impl Reply {
    fn of(mut response: ureq::http::Response<ureq::Body>) -> Self {
        let header = |(name, value): (&ureq::http::HeaderName, &ureq::http::HeaderValue)| {
            let value = value.to_str().unwrap_or_default().to_owned();
            (name.as_str().to_owned(), value)
        };
        Reply {
            status: response.status().as_u16(),
            headers: response.headers().iter().map(header).collect(),
            text: response.body_mut().read_to_string().expect("a body"),
        }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|h| h.0 == name);
        found.map(|h| h.1.as_str())
    }

    /// The objects of a stream of events.
    pub fn events(&self) -> Vec<Value> {
        let data = self.text.lines().filter_map(|l| l.strip_prefix("data: "));
        data.filter(|d| *d != "[DONE]")
            .map(|d| serde_json::from_str(d).expect("JSON"))
            .collect()
    }
}

/// Asks with headers.
pub fn post_with(base: &str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Reply {
    let mut request = agent().post(format!("{base}{path}"));
    request = request.header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Reply::of(request.send(body.to_string()).expect("an answer"))
}

/// Asks the shared server.
pub fn post(path: &str, body: &Value) -> Reply {
    post_with(shared(), path, body, &[])
}

/// The answer to a call that must succeed.
pub fn ask(path: &str, body: &Value) -> Value {
    let reply = post(path, body);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply.json()
}

/// The objects of a stream that must succeed.
pub fn stream(path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let reply = post(path, &body);
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    reply.events()
}

/// Looks at a path.
pub fn get_from(base: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = agent().get(format!("{base}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Reply::of(request.call().expect("an answer"))
}

/// Sends a form: its fields, and a file's name and bytes.
pub fn post_form(base: &str, path: &str, fields: &[(&str, &str)], file: (&str, &[u8])) -> Reply {
    let mut body = Vec::new();
    for (name, value) in fields {
        let head = format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n");
        body.extend(head.into_bytes());
        body.extend(value.as_bytes());
        body.extend(b"\r\n");
    }
    let name = file.0;
    let head = format!(
        "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
    );
    body.extend(head.into_bytes());
    body.extend(file.1);
    body.extend(b"\r\n--b--\r\n");
    let request = agent().post(format!("{base}{path}"));
    let request = request.header("content-type", "multipart/form-data; boundary=b");
    Reply::of(request.send(&body[..]).expect("an answer"))
}

/// Looks at a path of the shared server.
pub fn get(path: &str) -> Reply {
    get_from(shared(), path, &[])
}
