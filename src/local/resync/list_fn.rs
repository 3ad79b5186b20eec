//! A function as a list of ids.
//!
//! Must never take a failure for an empty list. Tested in tests/it/streams_resync.rs.

use std::fmt::Display;
use std::future::Future;

use tokio::sync::mpsc;

use crate::contract::{BoxFuture, IdList, ListError};

/// What a list function gives: the ids, or why there are none.
pub trait Listed {
    /// All ids that exist.
    ///
    /// # Errors
    /// The list is not complete.
    fn listed(self) -> Result<Vec<String>, ListError>;
}

impl Listed for Vec<String> {
    fn listed(self) -> Result<Vec<String>, ListError> {
        Ok(self)
    }
}

impl<E: Display> Listed for Result<Vec<String>, E> {
    fn listed(self) -> Result<Vec<String>, ListError> {
        self.map_err(|e| ListError(e.to_string()))
    }
}

/// A function as a list.
pub(super) struct ListFn<F>(pub(super) F);

impl<F, Fut> IdList for ListFn<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Listed> + Send + 'static,
{
    fn list(&self, into: mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>> {
        let list = (self.0)();
        Box::pin(async move {
            let ids = list.await.listed()?;
            let mut sent = 0;
            for id in ids {
                if into.send(id).await.is_err() {
                    break;
                }
                sent += 1;
            }
            Ok(sent)
        })
    }
}
