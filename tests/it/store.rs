//! The stores of one machine against the suite that every store must pass.

use std::path::PathBuf;
use std::sync::Arc;

use evenkeel::local::{FileStore, MemoryStore};
use evenkeel::{BoxFuture, RecordStore};

use super::store_conformance::{self, Place};

/// A memory store stands as long as a clone of it lives.
struct Memory(MemoryStore);

impl Place for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn RecordStore>> {
        Box::pin(async { Arc::new(self.0.clone()) as Arc<dyn RecordStore> })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_store_conforms() {
    assert!(!MemoryStore::new().is_durable());
    store_conformance::run(|| async { Memory(MemoryStore::new()) }).await;
}

struct Folder(tempfile::TempDir);

impl Place for Folder {
    fn open(&self) -> BoxFuture<'_, Arc<dyn RecordStore>> {
        let folder: PathBuf = self.0.path().into();
        Box::pin(async { Arc::new(FileStore::open(folder).await.expect("opens")) as Arc<dyn RecordStore> })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_store_conforms() {
    store_conformance::run(|| async { Folder(tempfile::tempdir().unwrap()) }).await;
}
