//! The page at `/`: files inside the program, which ask nobody else for anything.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::Shared;
use crate::error::ApiError;

/// Name, kind and bytes of each file.
const FILES: [(&str, &str, &[u8]); 5] = [
    (
        "",
        "text/html; charset=utf-8",
        include_bytes!("../page/index.html"),
    ),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../page/page.js"),
    ),
    (
        "markdown.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../page/markdown.js"),
    ),
    (
        "style.css",
        "text/css; charset=utf-8",
        include_bytes!("../page/style.css"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../page/icon.svg"),
    ),
];

/// The page may load its own files and ask its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) async fn index(app: Shared) -> Response {
    file(&app, "")
}

/// One of its files.
pub(crate) async fn part(app: Shared, Path(name): Path<String>) -> Response {
    file(&app, &name)
}

fn file(app: &Shared, name: &str) -> Response {
    let State(app) = app;
    let found = FILES.iter().find(|f| f.0 == name && app.options.page);
    let Some((_, kind, bytes)) = found else {
        return ApiError::not_found("there is no page here").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *bytes).into_response()
}
