//! Requests to a hub: redirects followed by hand, since their headers count and tokens must not travel.

use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::Hub;
use crate::error::{HubError, Result};

const MAX_REDIRECTS: usize = 8;
/// Longest wait that a hub may ask for.
const MAX_WAIT_S: u64 = 60;

/// A connection to a hub.
pub(crate) struct Client<'a> {
    hub: &'a Hub,
    agent: Agent,
}

/// A request's method and, for the rest of a file, its first byte.
#[derive(Clone, Copy)]
pub(crate) enum Ask {
    Head,
    Get { from: u64 },
}

impl<'a> Client<'a> {
    pub(crate) fn new(hub: &'a Hub) -> Self {
        let config = Agent::config_builder()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("tokkata/", env!("CARGO_PKG_VERSION")))
            .build();
        Client {
            hub,
            agent: config.into(),
        }
    }

    /// The answer to a request; `head` hears of every answer on the way, redirects included.
    pub(crate) fn ask(
        &self,
        url: &str,
        ask: Ask,
        mut head: impl FnMut(&Response<Body>),
    ) -> Result<Response<Body>> {
        let mut at = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            let answer = self.once(&at, ask)?;
            head(&answer);
            let status = answer.status().as_u16();
            let location = header(&answer, "location");
            match (status, location) {
                (301 | 302 | 303 | 307 | 308, Some(to)) => at = join(&at, &to),
                (200 | 206 | 416, _) => return Ok(answer),
                _ => return Err(refusal(url, &answer)),
            }
        }
        let what = format!("more than {MAX_REDIRECTS} redirects");
        let url = url.to_owned();
        Err(HubError::Network { url, what })
    }

    fn once(&self, url: &str, ask: Ask) -> Result<Response<Body>> {
        let mut request = match ask {
            Ask::Head => self.agent.head(url),
            Ask::Get { .. } => self.agent.get(url),
        };
        request = request.header("accept-encoding", "identity");
        if let Ask::Get { from: 1.. } = ask
            && let Ask::Get { from } = ask
        {
            request = request.header("range", format!("bytes={from}-"));
        }
        let own = host(url) == host(&self.hub.endpoint);
        if let Some(token) = self.hub.token.as_ref().filter(|_| own) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.call().map_err(|e| HubError::Network {
            url: url.to_owned(),
            what: e.to_string(),
        })
    }

    /// Does something again when it fails in a way that may pass, after a pause that grows.
    pub(crate) fn retry<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        let mut pause = Duration::from_millis(200);
        for _ in 0..self.hub.retries {
            match act() {
                Err(error) if error.may_pass() => {
                    let asked = match &error {
                        HubError::TooMany { seconds, .. } if *seconds > MAX_WAIT_S => {
                            return Err(error);
                        }
                        HubError::TooMany { seconds, .. } => Duration::from_secs(*seconds),
                        _ => Duration::ZERO,
                    };
                    std::thread::sleep(pause.max(asked));
                    pause *= 2;
                }
                other => return other,
            }
        }
        act()
    }
}

fn refusal(url: &str, answer: &Response<Body>) -> HubError {
    let url = url.to_owned();
    match answer.status().as_u16() {
        status @ (401 | 403) => HubError::Access { url, status },
        404 | 410 => HubError::NotFound { url },
        429 => {
            let seconds = header(answer, "retry-after").and_then(|s| s.parse().ok());
            let seconds = seconds.unwrap_or(1);
            HubError::TooMany { url, seconds }
        }
        status => HubError::Status { url, status },
    }
}

/// A header as text.
pub(crate) fn header(answer: &Response<Body>, name: &str) -> Option<String> {
    let value = answer.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

/// Scheme, name and port of an address.
fn host(url: &str) -> &str {
    let start = url.find("://").map_or(0, |i| i + 3);
    let end = url[start..].find('/').map_or(url.len(), |i| start + i);
    &url[..end]
}

fn join(at: &str, to: &str) -> String {
    if to.contains("://") {
        return to.to_owned();
    }
    match to.strip_prefix('/') {
        Some(path) => format!("{}/{path}", host(at)),
        None => format!("{}/{to}", at.rsplit_once('/').map_or(at, |p| p.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_joined() {
        assert_eq!(join("http://a:1/b/c", "/d"), "http://a:1/d");
        assert_eq!(join("http://a:1/b/c", "d"), "http://a:1/b/d");
        assert_eq!(join("http://a:1/b/c", "https://x/y"), "https://x/y");
        assert_ne!(host("http://a:1/b"), host("http://a:2/b"));
    }
}
