//! A way to a member on which what is sent can be held back.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Everything.
    All,
    /// Answers only: requests wait on the way.
    Answers,
    /// Requests only: answers wait on the way.
    Requests,
}

/// Forwards connections to a member.
pub(crate) struct Proxy {
    address: SocketAddr,
    flow: watch::Sender<Flow>,
}

impl Proxy {
    /// A way to the member with this address.
    pub(crate) async fn to(endpoint: &str) -> Self {
        let target = endpoint.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (flow, seen) = watch::channel(Flow::All);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, seen) = (target.clone(), seen.clone());
                tokio::spawn(async move {
                    let Ok(member) = TcpStream::connect(target).await else { return };
                    let ((from_client, to_client), (from_member, to_member)) =
                        (client.into_split(), member.into_split());
                    tokio::spawn(forward(from_client, to_member, seen.clone(), Flow::Answers));
                    forward(from_member, to_client, seen, Flow::Requests).await;
                });
            }
        });
        Self { address, flow }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

/// Forwards what is read, when nothing holds it back.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut flow: watch::Receiver<Flow>,
    held: Flow,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if flow.wait_for(|flow| *flow != held).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
