//! Connections from the first byte to the last: what hyper is told about them, with or without TLS.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
#[cfg(unix)]
use std::path::{Path, PathBuf};
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
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

/// How long to wait when the system has no more sockets.
const BREATH: Duration = Duration::from_millis(50);

/// A socket that listens.
pub(crate) struct Door {
    listener: Listener,
    tls: Option<TlsAcceptor>,
}

/// Where it listens.
enum Listener {
    Net(TcpListener),
    /// In the file system; the file goes when nobody listens any longer.
    #[cfg(unix)]
    File(
        UnixListener,
        #[expect(dead_code, reason = "it removes itself")] File,
    ),
}

/// The file of a socket.
#[cfg(unix)]
struct File(PathBuf);

#[cfg(unix)]
impl Drop for File {
    fn drop(&mut self) {
        // It may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Whoever comes in by a file is on this machine.
const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A connection of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        match self {
            Listener::Net(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Small pieces of a stream are not held back to be sent together.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), peer))
            }
            #[cfg(unix)]
            Listener::File(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), HERE))
            }
        }
    }
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
        let listener = Listener::Net(listener);
        Door { listener, tls }
    }

    /// Listens at a file. One that nobody listens at any longer is replaced.
    #[cfg(unix)]
    pub(crate) fn at_file(path: &Path, tls: Option<TlsAcceptor>) -> io::Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
        if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        let listener = Listener::File(listener, File(path.to_owned()));
        Ok(Door { listener, tls })
    }

    /// Listens at a file, which this system does not have.
    #[cfg(not(unix))]
    pub(crate) fn at_file(_: &std::path::Path, _: Option<TlsAcceptor>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Where on the network it listens; of a file nothing.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Net(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Listener::File(..) => None,
        }
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

async fn receive(
    stream: Box<dyn Stream>,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    guests: Guests,
) {
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
