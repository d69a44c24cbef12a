//! A server from its first socket to its last answer.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::app::App;
use crate::options::ServerOptions;
use crate::routes::router;
use crate::served::{Models, Named, Served};

/// How often the engine is asked whether it still takes its turns.
const BEAT: Duration = Duration::from_secs(1);

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
    #[error("the server failed: {0}")]
    Failed(io::Error),
}

/// A server that listens, and does not answer yet.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// An address that cannot be listened on, or that others can reach without a key.
    pub async fn bind(options: ServerOptions, models: Vec<Named>) -> Result<Self, ServeError> {
        if models.is_empty() {
            return Err(ServeError::NoModel);
        }
        let host = options.host.trim_start_matches('[').trim_end_matches(']');
        let address = format!("{}:{}", options.host, options.port);
        let fail = |source| ServeError::Listen {
            address: address.clone(),
            source,
        };
        let listener = TcpListener::bind((host, options.port))
            .await
            .map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        if !is_local(bound.ip()) && options.keys.is_empty() && !options.insecure {
            return Err(ServeError::Open { address });
        }
        let served = |named| {
            Served::new(
                named,
                options.sampling.clone(),
                options.max_tokens,
                options.queue,
            )
        };
        let models = Models::new(
            models.into_iter().map(served).collect(),
            options.strict_model,
        );
        Ok(Server {
            app: Arc::new(App::new(options, models)),
            listener,
            address: bound,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `end` comes; then takes no new calls, and waits for the answers under way, though not for ever.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn run(
        self,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), ServeError> {
        let Server { app, listener, .. } = self;
        let beat = tokio::spawn(listen_for_life(Arc::clone(&app)));
        let service = router(&app).into_make_service_with_connect_info::<SocketAddr>();
        let (told, mut ended) = tokio::sync::watch::channel(false);
        let drains = Arc::clone(&app);
        let graceful = async move {
            end.await;
            drains.draining.store(true, Ordering::Relaxed);
            let _ = told.send(true);
        };
        let serving = axum::serve(listener, service).with_graceful_shutdown(graceful);
        let patience = app.options.drain;
        let late = async move {
            // Without a sender there is nothing to wait for.
            let _ = ended.wait_for(|&over| over).await;
            tokio::time::sleep(patience).await;
        };
        let done = tokio::select! {
            done = serving => done,
            () = late => Ok(()),
        };
        beat.abort();
        done.map_err(ServeError::Failed)
    }
}

/// Whether an address is reached from this machine alone.
fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback()
}

/// Asks every engine now and then, and notes when all of them last answered.
async fn listen_for_life(app: Arc<App>) {
    loop {
        for model in app.models.all() {
            let model = Arc::clone(model);
            let answered = tokio::task::spawn_blocking(move || model.service.figures()).await;
            if !matches!(answered, Ok(Ok(_))) {
                return;
            }
        }
        let now = app.started.elapsed().as_millis();
        app.beat
            .store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
        tokio::time::sleep(BEAT).await;
    }
}
