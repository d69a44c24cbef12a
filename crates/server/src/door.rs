//! Connections from the first byte to the last: what hyper is told about them, with or without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

/// How long to wait when the system has no more sockets.
const BREATH: Duration = Duration::from_millis(50);

/// A socket that listens.
pub(crate) struct Door {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

/// What becomes of those who come in.
#[derive(Clone)]
pub(crate) struct Guests {
    pub(crate) router: Router,
    /// A header that takes longer than this is not waited for.
    pub(crate) stall: Duration,
    /// Becomes true when no new calls are taken.
    pub(crate) ended: watch::Receiver<bool>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, tls: Option<TlsAcceptor>) -> Self {
        Door { listener, tls }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Lets connections in until the end, and returns when the last of them is over.
    pub(crate) async fn open(self, guests: Guests) {
        let mut ended = guests.ended.clone();
        let mut inside = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                _ = ended.wait_for(|&over| over) => break,
                Some(_) = inside.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    inside.spawn(receive(stream, peer, self.tls.clone(), guests.clone()));
                }
                Err(error) => {
                    tracing::warn!(target: "tokkata::http", %error, "a connection could not be accepted");
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
        drop(self.listener);
        while inside.join_next().await.is_some() {}
    }
}

async fn receive(stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>, guests: Guests) {
    // Small pieces of a stream are not held back to be sent together.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        return serve(stream, peer, guests).await;
    };
    match tokio::time::timeout(guests.stall, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, peer, guests).await,
        Ok(Err(error)) => {
            tracing::debug!(target: "tokkata::http", %error, %peer, "no TLS");
        }
        Err(_) => {}
    }
}

async fn serve<S>(stream: S, peer: SocketAddr, guests: Guests)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Guests {
        router,
        stall,
        mut ended,
    } = guests;
    let service = service_fn(move |request| answer(router.clone(), peer, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(stall)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A connection that breaks is its client's affair.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ended.wait_for(|&over| over) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(
    mut router: Router,
    peer: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(peer));
    router.call(request).await
}
