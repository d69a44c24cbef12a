//! One model's place: whether it is in memory, since when nobody uses it, and how long it may stay so.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{Kind, Offer, Open};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::served::Served;
use crate::speech::Hearing;

/// A model in memory, lent.
#[derive(Clone)]
pub(crate) enum Loaded {
    Text(Arc<Served>),
    Speech(Arc<Hearing>),
}

impl Loaded {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Loaded::Text(model) => model.service.memory_bytes(),
            Loaded::Speech(model) => model.memory_bytes(),
        }
    }

    fn is_idle(&self) -> bool {
        match self {
            Loaded::Text(model) => Arc::strong_count(model) == 1,
            Loaded::Speech(model) => Arc::strong_count(model) == 1,
        }
    }

    /// Frees its memory; returns when that is done, unless somebody holds it.
    pub(super) fn close(self) {
        match self {
            Loaded::Text(model) => {
                if let Some(model) = Arc::into_inner(model) {
                    model.service.close();
                }
            }
            Loaded::Speech(model) => {
                if let Some(model) = Arc::into_inner(model) {
                    model.close();
                }
            }
        }
    }
}

/// Where a model is.
pub(super) enum State {
    /// Not in memory.
    Away,
    /// On its way.
    Loading,
    Here(Loaded),
    /// It could not be loaded, for this reason.
    Failed(String),
}

/// A model and where it is.
pub(super) struct Place {
    pub(super) about: Description,
    pub(super) opener: Option<Arc<dyn Open>>,
    pub(super) from_library: bool,
    pub(super) state: State,
    /// When somebody last asked for it, or was seen using it.
    pub(super) used: Instant,
    /// What is counted of it.
    pub(super) metrics: Arc<Metrics>,
    pub(super) was_here: bool,
    /// What a request said of how long it stays.
    pub(super) keep: Option<Keep>,
}

/// What is known of a model whether it is in memory or not.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) id: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// Seconds since 1970 at which its file was written.
    pub(crate) created: u64,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// A model as a list shows it.
#[derive(Clone)]
pub(crate) struct About {
    pub(crate) of: Description,
    pub(crate) loaded: Option<Loaded>,
    /// `unloaded`, `loading` or `loaded`.
    pub(crate) status: &'static str,
    /// Why it could not be loaded.
    pub(crate) failure: Option<String>,
    /// How long it is until it leaves, if nobody uses it.
    pub(crate) leaves_in: Option<Duration>,
}

impl Description {
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let plain = name.strip_suffix(":latest").unwrap_or(name);
        let plain = plain.strip_prefix("hf.co/").unwrap_or(plain);
        let names = std::iter::once(&self.id).chain(&self.aliases);
        names.into_iter().any(|n| n == name || n == plain)
    }
}

impl Place {
    pub(super) fn new(offer: Offer, from_library: bool) -> Self {
        let file = std::fs::metadata(&offer.path).ok();
        let written = file.as_ref().and_then(|f| f.modified().ok());
        let written = written.unwrap_or_else(SystemTime::now);
        Place {
            about: Description {
                id: offer.id,
                aliases: offer.aliases,
                tags: offer.tags,
                path: offer.path,
                kind: offer.kind,
                created: written
                    .duration_since(UNIX_EPOCH)
                    .map_or(0, |d| d.as_secs()),
                bytes: file.map_or(0, |f| f.len()),
            },
            opener: offer.opener,
            from_library,
            state: State::Away,
            used: Instant::now(),
            metrics: Arc::default(),
            was_here: false,
            keep: None,
        }
    }

    /// What a list shows, where a model that nobody uses leaves after `idle`.
    pub(super) fn about(&self, idle: Option<Duration>) -> About {
        let (status, loaded, failure) = match &self.state {
            State::Away => ("unloaded", None, None),
            State::Loading => ("loading", None, None),
            State::Here(loaded) => ("loaded", Some(loaded.clone()), None),
            State::Failed(why) => ("unloaded", None, Some(why.clone())),
        };
        About {
            of: self.about.clone(),
            loaded,
            status,
            failure,
            leaves_in: self
                .keep
                .map_or(idle, Keep::limit)
                .map(|limit| limit.saturating_sub(self.used.elapsed())),
        }
    }

    /// Whether it is in memory, nobody uses it, and it could come back.
    pub(super) fn may_leave(&self) -> bool {
        let idle = matches!(&self.state, State::Here(loaded) if loaded.is_idle());
        idle && self.opener.is_some()
    }

    /// Takes it out.
    pub(super) fn leave(&mut self) -> Option<Loaded> {
        self.keep = None;
        match std::mem::replace(&mut self.state, State::Away) {
            State::Here(loaded) => Some(loaded),
            other => {
                self.state = other;
                None
            }
        }
    }
}

/// How long a model stays in memory when nobody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    For(Duration),
    Always,
}

impl Keep {
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            Keep::For(time) => Some(time),
            Keep::Always => None,
        }
    }

    /// Takes what a request says: Ollama's `keep_alive`, seconds or a text such as `5m`, or LM Studio's `ttl`, seconds.
    ///
    /// # Errors
    /// Neither.
    pub(crate) fn take(fields: &mut Fields) -> Result<Option<Self>> {
        let Some((name, value)) = fields.take_any(&["keep_alive", "ttl"]) else {
            return Ok(None);
        };
        let wrong = || {
            let text = format!("found {value}, expected seconds or a time such as 5m");
            ApiError::field(name, text)
        };
        Keep::of(&value).map(Some).ok_or_else(wrong)
    }

    /// Whether a request says that the model is to leave at once.
    pub(crate) fn ends(fields: &Fields) -> bool {
        let said = fields.peek("keep_alive").and_then(Keep::of);
        said == Some(Keep::For(Duration::ZERO))
    }

    fn of(value: &Value) -> Option<Self> {
        // More than anybody waits is for ever.
        const MOST: f64 = 1e9;
        let seconds = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => seconds(text),
            _ => None,
        };
        match seconds.filter(|s| s.is_finite())? {
            s if (0.0..MOST).contains(&s) => Some(Keep::For(Duration::from_secs_f64(s))),
            _ => Some(Keep::Always),
        }
    }
}

/// The seconds of a text such as `90`, `1h30m` or `-1`.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut sum = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        sum += number
            * match &rest[..letters] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                _ => return None,
            };
        rest = &rest[letters..];
    }
    Some(sign * sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_read_as_ollama_writes_them() {
        let read = |value: Value| {
            let mut fields = Fields::body(json!({"keep_alive": value})).expect("an object");
            Keep::take(&mut fields)
        };
        let exactly = |s| Ok(Some(Keep::For(Duration::from_secs_f64(s))));
        assert_eq!(read(json!("5m")), exactly(300.0));
        assert_eq!(read(json!("1h30m")), exactly(5400.0));
        assert_eq!(read(json!("250ms")), exactly(0.25));
        assert_eq!(read(json!(0)), exactly(0.0));
        assert_eq!(read(json!("10")), exactly(10.0));
        for always in [json!(-1), json!("-1m"), json!("-1")] {
            assert_eq!(read(always), Ok(Some(Keep::Always)));
        }
        for wrong in [json!("soon"), json!("5x"), json!([]), json!("5é")] {
            assert!(read(wrong).is_err());
        }
        assert_eq!(Keep::take(&mut Fields::default()), Ok(None));
    }
}
