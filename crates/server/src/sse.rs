//! Answers that are sent while they are made: server-sent events, and lines of JSON.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

/// Pieces that may wait for a reader.
const AHEAD: usize = 32;

/// How a stream is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Lines of JSON rather than events.
    pub(crate) lines: bool,
    /// What is sent when nothing has come for this long.
    pub(crate) ping: Option<(Duration, &'static str)>,
    /// A reader that takes nothing for this long is gone.
    pub(crate) stall: Duration,
}

/// The reader has gone.
#[derive(Debug)]
pub(crate) struct Gone;

/// Where the pieces of an answer go.
pub(crate) struct Sender {
    pieces: mpsc::Sender<Bytes>,
    lines: bool,
    stall: Duration,
}

impl Sender {
    /// Sends one object.
    pub(crate) async fn data(&self, value: &Value) -> Result<(), Gone> {
        match self.lines {
            true => self.raw(format!("{value}\n")).await,
            false => self.raw(format!("data: {value}\n\n")).await,
        }
    }

    /// Sends an event with a name.
    pub(crate) async fn event(&self, name: &str, value: &Value) -> Result<(), Gone> {
        self.raw(format!("event: {name}\ndata: {value}\n\n")).await
    }

    /// Sends what OpenAI's streams end with.
    pub(crate) async fn done(&self) -> Result<(), Gone> {
        self.raw("data: [DONE]\n\n".to_owned()).await
    }

    /// Sends what is written already.
    pub(crate) async fn raw(&self, text: String) -> Result<(), Gone> {
        let sent = self.pieces.send_timeout(text.into(), self.stall).await;
        sent.map_err(|_| Gone)
    }
}

/// A response whose body is what `write` sends. When the reader goes, `write` is dropped where it stands.
pub(crate) fn respond<F, W>(manner: Manner, write: W) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
    W: FnOnce(Sender) -> F,
{
    let (pieces, reader) = mpsc::channel(AHEAD);
    let watch = pieces.clone();
    let writing = write(Sender {
        pieces,
        lines: manner.lines,
        stall: manner.stall,
    });
    tokio::spawn(async move {
        tokio::select! {
            () = watch.closed() => {}
            // Whoever is gone hears no error.
            _ = writing => {}
        }
    });
    let body = futures_util::stream::unfold(reader, move |reader| next(reader, manner.ping));
    let mut response = Response::new(Body::from_stream(body));
    let kind = match manner.lines {
        true => "application/x-ndjson",
        false => "text/event-stream",
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

type Next = Option<(Result<Bytes, Infallible>, mpsc::Receiver<Bytes>)>;

async fn next(mut reader: mpsc::Receiver<Bytes>, ping: Option<(Duration, &'static str)>) -> Next {
    let Some((patience, text)) = ping else {
        return reader.recv().await.map(|piece| (Ok(piece), reader));
    };
    match tokio::time::timeout(patience, reader.recv()).await {
        Ok(piece) => piece.map(|piece| (Ok(piece), reader)),
        Err(_) => Some((Ok(Bytes::from_static(text.as_bytes())), reader)),
    }
}
