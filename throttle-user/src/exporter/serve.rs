//! Connections: how many, and how long one may take to say what it wants.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore};

/// Connections at a time; more wait.
const CONNECTIONS: usize = 64;
/// A head that is not whole by then ends the connection; so does a connection that is kept and not used.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a head, at most; the answer to more is 431.
const HEAD_BYTES: usize = 16 << 10;
/// After a failed accept, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}. Choose another address with --listen, or port 0 for any free one")]
pub struct ListenError {
    /// Address asked for.
    pub address: SocketAddr,
    /// What the system said.
    #[source]
    pub cause: io::Error,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listening {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listening {
    /// Binds an address.
    ///
    /// # Errors
    /// [`ListenError`] names the address and what to do.
    pub async fn on(address: SocketAddr) -> Result<Self, ListenError> {
        let refused = |cause| ListenError { address, cause };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Self { listener, address })
    }

    /// Where it listens, the port chosen by the system filled in.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it is dropped.
    pub async fn serve(self, router: Router) {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            // Never closed.
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // A socket that refuses the option still works.
            drop(stream.set_nodelay(true));
            let service = TowerToHyperService::new(router.clone());
            tokio::spawn(async move {
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD_WITHIN)
                    .max_buf_size(HEAD_BYTES)
                    .serve_connection(TokioIo::new(stream), service);
                // A client that went away, or that sent nonsense and was told so.
                drop(served.await);
                drop(permit);
            });
        }
    }
}
