//! The server's certificate and key.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::serve::ServeError;

/// What speaks TLS with this certificate, its chain and its key, all PEM.
///
/// # Errors
/// Files that cannot be read, or that do not belong together.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, ServeError> {
    let fault = |file: &Path, why: String| ServeError::Tls {
        file: file.display().to_string(),
        why,
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| fault(certificate, format!("is no certificate in PEM: {e}")))?;
    if chain.is_empty() {
        return Err(fault(
            certificate,
            "has no certificate, expected PEM".to_owned(),
        ));
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| fault(key, format!("is no private key in PEM: {e}")))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| fault(certificate, e.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| {
            fault(
                certificate,
                format!("does not go with {}: {e}", key.display()),
            )
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
