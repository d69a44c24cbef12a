//! What callers may do to the models of a server, where it allows that: pull, make, copy, remove.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{self, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::told;
use crate::app::{App, Call, Dialect, Json, Shared, aside};
use crate::error::{ApiError, Result};
use crate::fields::Fields;
use crate::sse::{self, Gone, Manner, Sender};

/// Fetches a model, and tells how far it has come.
pub(crate) async fn pull(app: Shared, request: Request) -> Response {
    let State(app) = app;
    told(pulled(app, request).await)
}

/// Models are not sent anywhere.
pub(crate) async fn push(request: Request) -> Response {
    crate::app::swallow(request).await;
    Dialect::Ollama.error(&ApiError::unsupported(
        "models are not sent to other servers",
    ))
}

/// Makes a model of another one, or of a file that was sent.
pub(crate) async fn create(app: Shared, request: Request) -> Response {
    let State(app) = app;
    told(created(&app, request).await)
}

/// Gives a model another name.
pub(crate) async fn copy(app: Shared, request: Request) -> Response {
    let State(app) = app;
    told(copied(&app, request).await)
}

/// Removes a model and its file.
pub(crate) async fn remove(app: Shared, request: Request) -> Response {
    let State(app) = app;
    told(removed(&app, request).await)
}

/// Whether a file was sent.
pub(crate) async fn has_blob(
    app: Shared,
    extract::Path(digest): extract::Path<String>,
) -> StatusCode {
    let State(app) = app;
    let found = blob(&app, &digest).is_ok_and(|(path, _)| path.is_file());
    match found {
        true => StatusCode::OK,
        false => StatusCode::NOT_FOUND,
    }
}

/// Takes a file.
pub(crate) async fn put_blob(
    app: Shared,
    extract::Path(digest): extract::Path<String>,
    request: Request,
) -> Response {
    let State(app) = app;
    told(taken(&app, &digest, request).await)
}

fn text_of(fields: &mut Fields, names: &[&str]) -> Result<String> {
    let given = fields.take_any(names);
    let text = given.and_then(|(_, value)| value.as_str().map(str::to_owned));
    text.filter(|t| !t.is_empty())
        .ok_or_else(|| ApiError::field(names[0], "is missing"))
}

async fn pulled(app: Arc<App>, request: Request) -> Result<Response> {
    let mut call = Call::read(&app, request).await?;
    let fields = &mut call.fields;
    let name = text_of(fields, &["model", "name"])?;
    let stream = fields.boolean("stream")?.unwrap_or(true);
    let insecure = fields.boolean("insecure")?;
    if insecure == Some(true) {
        return Err(ApiError::field(
            "insecure",
            "the hub is asked over TLS only",
        ));
    }
    fields.finish(app.options.strict_fields)?;
    let library = Arc::clone(app.fleet.library()?);
    let (tell, told) = tokio::sync::mpsc::unbounded_channel();
    let fetched = {
        let name = name.strip_prefix("hf.co/").unwrap_or(&name).to_owned();
        aside(move || {
            let mut each = |file: &str, done: u64, total: u64| {
                // Whoever has left hears nothing; the file comes nevertheless.
                let _ = tell.send((file.to_owned(), done, total));
            };
            library.pull(&name, &mut each).map_err(ApiError::invalid)
        })
    };
    let fetched = tokio::spawn(async move {
        let offer = fetched.await?;
        app.fleet.add(offer);
        Ok(())
    });
    let done = json!({"status": "success"});
    if !stream {
        joined(fetched.await)?;
        return Ok(Json(done).into_response());
    }
    let manner = Manner {
        lines: true,
        ping: None,
        stall: std::time::Duration::from_secs(60),
    };
    Ok(sse::respond(manner, |sender| {
        tell_pull(told, fetched, sender)
    }))
}

type Told = tokio::sync::mpsc::UnboundedReceiver<(String, u64, u64)>;

async fn tell_pull(
    mut told: Told,
    fetched: tokio::task::JoinHandle<Result<()>>,
    sender: Sender,
) -> std::result::Result<(), Gone> {
    sender.data(&json!({"status": "pulling manifest"})).await?;
    let mut before = (String::new(), 0);
    while let Some((file, done, total)) = told.recv().await {
        // A hundredth at a time.
        let is_news = file != before.0 || done == total || done - before.1.min(done) >= total / 100;
        if !is_news {
            continue;
        }
        let line = json!({"status": format!("pulling {file}"), "digest": file, "total": total, "completed": done});
        sender.data(&line).await?;
        before = (file, done);
    }
    match joined(fetched.await) {
        Ok(()) => sender.data(&json!({"status": "success"})).await,
        Err(error) => sender.data(&json!({"error": error.message})).await,
    }
}

fn joined(ended: std::result::Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    ended.map_err(|_| ApiError::internal("the model could not be fetched: an internal error"))?
}

async fn created(app: &App, request: Request) -> Result<Response> {
    let mut call = Call::read(app, request).await?;
    let fields = &mut call.fields;
    let name = text_of(fields, &["model", "name"])?;
    let stream = fields.boolean("stream")?.unwrap_or(true);
    fields.refuse(
        &["modelfile", "template", "system", "parameters", "messages", "adapters", "quantize"],
        "a model is made of another one (from) or of a file (files), as it stands; send these with each request",
    )?;
    fields.labels(&["license"]);
    let from = fields.text("from")?;
    let files = fields.take("files");
    fields.finish(app.options.strict_fields)?;
    let library = Arc::clone(app.fleet.library()?);
    let path = match (from, files) {
        (Some(from), None) => app.fleet.about(Some(&from))?.of.path,
        (None, Some(files)) => only_blob(app, &files)?,
        _ => return Err(ApiError::field("from", "expected either from or files")),
    };
    aside(move || library.link(&path, &name).map_err(ApiError::invalid)).await?;
    let body = json!({"status": "success"});
    match stream {
        true => Ok((
            StatusCode::OK,
            [("content-type", "application/x-ndjson")],
            format!("{body}\n"),
        )
            .into_response()),
        false => Ok(Json(body).into_response()),
    }
}

/// The only file of a list by name and digest.
fn only_blob(app: &App, files: &Value) -> Result<PathBuf> {
    let wrong = || {
        ApiError::field(
            "files",
            "expected one name with the digest of a file that was sent",
        )
    };
    let files = files
        .as_object()
        .filter(|f| f.len() == 1)
        .ok_or_else(wrong)?;
    let digest = files
        .values()
        .next()
        .and_then(Value::as_str)
        .ok_or_else(wrong)?;
    let (path, _) = blob(app, digest)?;
    match path.is_file() {
        true => Ok(path),
        false => Err(wrong()),
    }
}

async fn copied(app: &App, request: Request) -> Result<Response> {
    let mut call = Call::read(app, request).await?;
    let source = text_of(&mut call.fields, &["source"])?;
    let name = text_of(&mut call.fields, &["destination"])?;
    let library = Arc::clone(app.fleet.library()?);
    let path = app.fleet.about(Some(&source))?.of.path;
    aside(move || library.link(&path, &name).map_err(ApiError::invalid)).await?;
    Ok(StatusCode::OK.into_response())
}

async fn removed(app: &App, request: Request) -> Result<Response> {
    let mut call = Call::read(app, request).await?;
    let name = text_of(&mut call.fields, &["model", "name"])?;
    let library = Arc::clone(app.fleet.library()?);
    let about = app.fleet.about(Some(&name))?;
    if !about.of.is_called(&name) {
        return Err(ApiError::not_found(format!("model '{name}' not found")));
    }
    let (id, path) = (about.of.id.clone(), about.of.path.clone());
    drop(about);
    app.fleet.unload(Some(&id)).await?;
    aside(move || library.remove(&path).map_err(ApiError::invalid)).await?;
    app.fleet.forget(&id);
    Ok(StatusCode::OK.into_response())
}

/// Where a file of this digest lies, and the digest in hexadecimal.
fn blob(app: &App, digest: &str) -> Result<(PathBuf, String)> {
    let library = app.fleet.library()?;
    let folder = library.uploads().ok_or_else(|| {
        ApiError::unsupported(
            "files are not taken: the server has no folder of models (--models-dir)",
        )
    })?;
    let hex = digest
        .strip_prefix("sha256:")
        .or_else(|| digest.strip_prefix("sha256-"));
    let hex = hex.filter(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit()));
    let hex =
        hex.ok_or_else(|| ApiError::field("digest", "expected sha256: and 64 hexadecimal digits"))?;
    let hex = hex.to_ascii_lowercase();
    Ok((folder.join(format!("sha256-{hex}")), hex))
}

async fn taken(app: &App, digest: &str, request: Request) -> Result<Response> {
    let (path, hex) = match blob(app, digest) {
        Ok(found) => found,
        Err(error) => {
            crate::app::swallow(request).await;
            return Err(error);
        }
    };
    if !path.is_file() {
        let part = path.with_extension(format!("{}.part", crate::run::id("")));
        let written = write_blob(app, &part, &hex, request).await;
        let kept = match written {
            Ok(()) => tokio::fs::rename(&part, &path)
                .await
                .map_err(|e| disk(&path, &e)),
            Err(error) => Err(error),
        };
        if kept.is_err() {
            // Nothing is left of a file that did not come whole.
            let _ = tokio::fs::remove_file(&part).await;
        }
        kept?;
    }
    Ok(StatusCode::CREATED.into_response())
}

fn disk(path: &Path, error: &std::io::Error) -> ApiError {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    ApiError::internal(format!("{name}: cannot be written: {error}"))
}

async fn write_blob(app: &App, part: &Path, hex: &str, request: Request) -> Result<()> {
    if let Some(folder) = part.parent() {
        tokio::fs::create_dir_all(folder)
            .await
            .map_err(|e| disk(part, &e))?;
    }
    let mut file = tokio::fs::File::create(part)
        .await
        .map_err(|e| disk(part, &e))?;
    let mut sum = Sha256::new();
    let mut pieces = request.into_body().into_data_stream();
    let late = |_| ApiError::invalid("the file did not come in time");
    while let Some(piece) = tokio::time::timeout(app.options.stall, pieces.next())
        .await
        .map_err(late)?
    {
        let piece = piece.map_err(|_| ApiError::invalid("the file did not come whole"))?;
        sum.update(&piece);
        file.write_all(&piece).await.map_err(|e| disk(part, &e))?;
    }
    file.flush().await.map_err(|e| disk(part, &e))?;
    let found: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    match found == hex {
        true => Ok(()),
        false => Err(ApiError::field(
            "digest",
            format!("the file has sha256:{found}"),
        )),
    }
}
