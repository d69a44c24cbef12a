//! How a server is started.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use serde_json::{Map, Value};
use tokkata::Sampling;
use tokkata::audio::Silero;
pub use tokkata_requests::style::{ReasoningNames, Style, Thinking};

/// Choices of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen on: a name or a number.
    pub host: String,
    /// Port to listen on; 0 for any that is free.
    pub port: u16,
    /// A socket in the file system to listen on instead.
    pub socket: Option<PathBuf>,
    /// What is put before every path, such as `/llm`.
    pub prefix: String,
    /// What may stand before every path, where a proxy leaves it there.
    pub root: String,
    /// Keys of which every call must have one; none for no check.
    pub keys: Vec<String>,
    /// Listen elsewhere than on this machine without a key.
    pub insecure: bool,
    /// Names under which this server may be asked.
    pub hosts: Hosts,
    /// Other pages that may ask.
    pub cross: Cross,
    /// Answers that may wait for a place.
    pub queue: usize,
    /// Calls of one client under way at once.
    pub per_client: Option<usize>,
    /// Bytes of a body at most.
    pub body_bytes: usize,
    /// A reader or a writer that moves nothing for this long is gone.
    pub stall: Duration,
    /// How often an idle stream says that it is alive.
    pub ping: Option<Duration>,
    /// How long answers may go on once the server is told to end.
    pub drain: Duration,
    /// Parameters that a request does not name.
    pub sampling: Sampling,
    /// The seed of requests that name none; `None` for one that nobody can foresee.
    pub seed: Option<u64>,
    /// How a model that can think does so, where a request does not say.
    pub thinking: Thinking,
    /// Further names for chat templates, behind a request's own.
    pub template_names: Map<String, Value>,
    /// Answers never end by themselves, where a request does not say.
    pub ignore_eos: bool,
    /// An answer goes on when the context is full, and forgets what is oldest but for so many first tokens; `None` ends it.
    pub shift: Option<usize>,
    /// Replies show the prompt.
    pub verbose: bool,
    /// Streams tell what they cost, whether asked to or not.
    pub usage_always: bool,
    /// Answers tell how long they took, as vLLM's `metrics`.
    pub tells_times: bool,
    /// Tokens whose probabilities are told are called by their ids.
    pub tokens_by_id: bool,
    /// Tokens of an answer that does not say how many.
    pub max_tokens: Option<usize>,
    /// The likeliest tokens that can be told with each token; `None` for 20.
    pub most_logprobs: Option<usize>,
    /// An unknown model is an error even where only one is served.
    pub strict_model: bool,
    /// An unknown field is an error.
    pub strict_fields: bool,
    /// Bodies need not say that they are JSON.
    pub any_content_type: bool,
    /// A last message of the assistant is continued.
    pub prefill: bool,
    /// What the answer's reasoning is called.
    pub reasoning: ReasoningNames,
    /// The net that tells where somebody speaks; loudness does without.
    pub vad: Option<Arc<Silero>>,
    /// `/slots` tells what is under way.
    pub slots: bool,
    /// `/metrics` tells what was counted.
    pub metrics: bool,
    /// `POST /props` may change what is served.
    pub props: bool,
    /// A file with this server's certificate, and one with its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The page at `/`.
    pub page: bool,
    /// How many models are in memory, and for how long.
    pub models: ModelLimits,
    /// An engine that has work and finishes none of it for this long is not healthy.
    pub silence: Duration,
    /// How long an answer that may be taken up again goes on when nobody reads it.
    pub grace: Duration,
}

/// How many models are in memory, and for how long.
#[derive(Clone, Debug)]
pub struct ModelLimits {
    /// Bytes of all of them.
    pub bytes: Option<u64>,
    /// Their number.
    pub most: Option<usize>,
    /// A model that nobody uses leaves after this.
    pub idle: Option<Duration>,
    /// Whoever asks for a model that is not in memory has it loaded.
    pub on_request: bool,
    /// How long a call waits until those that use other models make room.
    pub patience: Duration,
    /// Callers may pull, copy, make and remove models.
    pub changes: bool,
}

impl Default for ModelLimits {
    fn default() -> Self {
        ModelLimits {
            bytes: None,
            most: None,
            idle: None,
            on_request: true,
            patience: Duration::from_secs(30),
            changes: false,
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            host: "127.0.0.1".to_owned(),
            port: 8080,
            socket: None,
            prefix: String::new(),
            root: String::new(),
            keys: Vec::new(),
            insecure: false,
            hosts: Hosts::default(),
            cross: Cross::default(),
            queue: 256,
            per_client: None,
            body_bytes: 32 << 20,
            stall: Duration::from_secs(60),
            ping: Some(Duration::from_secs(15)),
            drain: Duration::from_secs(30),
            sampling: Sampling::default(),
            seed: None,
            thinking: Thinking::default(),
            template_names: Map::new(),
            ignore_eos: false,
            shift: None,
            verbose: false,
            usage_always: false,
            tells_times: false,
            tokens_by_id: false,
            max_tokens: None,
            most_logprobs: None,
            strict_model: false,
            strict_fields: false,
            any_content_type: false,
            prefill: true,
            reasoning: ReasoningNames::Both,
            vad: None,
            slots: false,
            metrics: true,
            props: false,
            tls: None,
            page: true,
            models: ModelLimits::default(),
            silence: Duration::from_secs(120),
            grace: Duration::from_secs(60),
        }
    }
}

impl ServerOptions {
    /// How requests are read and answers written.
    pub(crate) fn style(&self) -> Style {
        Style {
            strict_fields: self.strict_fields,
            prefill: self.prefill,
            usage_always: self.usage_always,
            metrics: self.tells_times,
            tokens_by_id: self.tokens_by_id,
            verbose: self.verbose,
            reasoning: self.reasoning,
        }
    }
}

/// Names under which a server may be asked. A page of another host that was given our address cannot use its own name.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// Names beside `localhost` and numbers.
    pub names: Vec<String>,
    /// Any name.
    pub any: bool,
}

impl Hosts {
    pub(crate) fn allows(&self, host: &str) -> bool {
        let name = name_of(host);
        self.any
            || name.eq_ignore_ascii_case("localhost")
            || name.ends_with(".localhost")
            || name.parse::<std::net::IpAddr>().is_ok()
            || self.names.iter().any(|n| n.eq_ignore_ascii_case(name))
    }
}

/// The name in a host's text, without its port and brackets.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

impl ServerOptions {
    /// A path without what stands before every path.
    pub(crate) fn own_path<'p>(&self, path: &'p str) -> &'p str {
        let without = |path: &'p str, before: &str| {
            let rest = path.strip_prefix(before.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/')).then_some(rest)
        };
        let path = without(path, &self.root).unwrap_or(path);
        match without(path, &self.prefix).unwrap_or(path) {
            "" => "/",
            own => own,
        }
    }
}

/// Whether an origin is a page of this machine.
fn is_local(origin: &str) -> bool {
    let host = origin.split_once("://").map_or(origin, |(_, host)| host);
    let name = name_of(host);
    let number = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || number.is_ok_and(|ip| ip.is_loopback())
}

/// Pages of other hosts that may ask.
#[derive(Clone, Debug, Default)]
pub struct Cross {
    /// Their origins, such as `https://example.org`; `localhost` for those of this machine, `*` for all.
    pub origins: Vec<String>,
}

impl Cross {
    pub(crate) fn allows(&self, origin: &str) -> bool {
        let local = || is_local(origin);
        let fits = |o: &String| o == "*" || o == origin || (o == "localhost" && local());
        self.origins.iter().any(fits)
    }

    /// Tells a browser that the page at `origin` may read the answer.
    pub(crate) fn apply(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        let Some(origin) = origin else { return };
        if !origin.to_str().is_ok_and(|o| self.allows(o)) {
            return;
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let any = HeaderValue::from_static("authorization, content-type, x-api-key, *");
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, any);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_stands_for_pages_of_this_machine() {
        let cross = Cross {
            origins: vec!["localhost".to_owned()],
        };
        for fine in [
            "http://localhost",
            "http://localhost:3000",
            "http://127.0.0.1:1",
            "http://[::1]:3",
        ] {
            assert!(cross.allows(fine), "{fine}");
        }
        for other in [
            "http://evil.com",
            "http://notlocalhost",
            "http://localhost.evil.com",
            "http://10.0.0.1",
        ] {
            assert!(!cross.allows(other), "{other}");
        }
    }

    #[test]
    fn names_of_other_hosts_are_refused() {
        let hosts = Hosts {
            names: vec!["box.lan".to_owned()],
            any: false,
        };
        for fine in [
            "localhost:8080",
            "127.0.0.1",
            "[::1]:80",
            "10.0.0.7:1",
            "BOX.lan:8080",
        ] {
            assert!(hosts.allows(fine), "{fine}");
        }
        assert!(!hosts.allows("evil.example:8080") && !Hosts::default().allows("box.lan"));
    }
}
