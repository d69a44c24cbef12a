//! A server from its first socket to its last answer.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::door::{Door, Guests};
use crate::fleet::{Fleet, Rules, Stock};
use crate::options::ServerOptions;
use crate::params::Defaults;
use crate::pulse;
use crate::routes::router;
use crate::tls;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ServeError {
    #[error("{address}: cannot be listened on: {source}")]
    Listen { address: String, source: io::Error },
    #[error(
        "{address} can be reached from other machines, and no key is asked for; give --api-key, or --insecure if everybody may use it"
    )]
    Open { address: String },
    #[error("no model was given")]
    NoModel,
    #[error("the system gives no threads: {0}")]
    Threads(io::Error),
    #[error("no address was given to listen on")]
    NoAddress,
    #[error("{file}: {why}")]
    Tls { file: String, why: String },
}

/// A server that listens, and does not answer yet.
pub struct Server {
    app: Arc<App>,
    doors: Vec<Door>,
    place: Place,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At an address.
    Net(SocketAddr),
    /// At a file.
    File(PathBuf),
}

impl Place {
    /// The address, where it is one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Place::Net(address) => Some(*address),
            Place::File(_) => None,
        }
    }
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// An address that cannot be listened on, or that others can reach without a key; a certificate that cannot be used.
    pub async fn bind(
        options: ServerOptions,
        models: impl Into<Stock>,
    ) -> Result<Self, ServeError> {
        let stock = models.into();
        if stock.offers.is_empty() && stock.library.is_none() {
            return Err(ServeError::NoModel);
        }
        let tls = match &options.tls {
            Some((certificate, key)) => Some(tls::acceptor(certificate, key)?),
            None => None,
        };
        let (doors, place) = match &options.socket {
            Some(path) => {
                let door = Door::at_file(path, tls).map_err(|source| ServeError::Listen {
                    address: path.display().to_string(),
                    source,
                })?;
                (vec![door], Place::File(path.clone()))
            }
            None => doors(&options, tls).await?,
        };
        let defaults = Defaults {
            sampling: options.sampling.clone(),
            seed: options.seed,
            max_tokens: options.max_tokens,
            thinking: options.thinking.clone(),
            names: options.template_names.clone(),
            ignore_eos: options.ignore_eos,
            shift: options.shift,
            most_logprobs: options.most_logprobs,
        };
        let rules = Rules {
            limits: options.models.clone(),
            strict: options.strict_model,
            defaults,
            queue: options.queue,
        };
        let fleet = Fleet::new(rules, stock);
        Ok(Server {
            app: Arc::new(App::new(options, fleet)),
            doors,
            place,
        })
    }

    /// Where it listens; of several addresses the first.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Answers until `end` comes; then takes no new calls, and waits for the answers under way, though not for ever.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn run(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        let Server { app, doors, .. } = self;
        let beat = tokio::spawn(pulse::listen(Arc::clone(&app)));
        let (told, ended) = tokio::sync::watch::channel(false);
        let router = router(&app);
        let mut open = JoinSet::new();
        for door in doors {
            let guests = Guests {
                router: router.clone(),
                stall: app.options.stall,
                ended: ended.clone(),
            };
            open.spawn(door.open(guests));
        }
        drop(ended);
        end.await;
        app.draining.store(true, Ordering::Relaxed);
        // Where nobody listens any longer there is nobody to tell.
        let _ = told.send(true);
        let closed = async { while open.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(app.options.drain, closed).await;
        beat.abort();
        Ok(())
    }
}

/// Sockets at every address, and the first of them.
async fn doors(
    options: &ServerOptions,
    tls: Option<TlsAcceptor>,
) -> Result<(Vec<Door>, Place), ServeError> {
    let mut doors: Vec<Door> = Vec::new();
    let mut port = options.port;
    for host in options.host.split(',').map(str::trim) {
        let listener = listen(host, port, options).await?;
        // Where any port would do, further addresses get the first one's.
        port = listener.0.port();
        doors.push(Door::new(listener.1, tls.clone()));
    }
    let address = doors.first().and_then(Door::address);
    let address = address.ok_or(ServeError::NoAddress)?;
    Ok((doors, Place::Net(address)))
}

async fn listen(
    host: &str,
    port: u16,
    options: &ServerOptions,
) -> Result<(SocketAddr, TcpListener), ServeError> {
    let address = format!("{host}:{port}");
    let fail = |source| ServeError::Listen {
        address: address.clone(),
        source,
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let listener = TcpListener::bind((bare, port)).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    if !is_local(bound.ip()) && options.keys.is_empty() && !options.insecure {
        return Err(ServeError::Open { address });
    }
    Ok((bound, listener))
}

/// Whether an address is reached from this machine alone.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback()
}
