//! Where a list of ids waits until it is known to be complete: in memory if it is small, else in a file without a name.
//!
//! A list is taken in as fast as its source gives it, and handed on as fast as runs make room, which may take hours; no
//! server keeps an answer open for so long. Must never write on a runtime's thread. Tested through the lists in
//! `tests`.

use std::io::{self, Seek, Write};

use tempfile::SpooledTempFile;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The largest list, in bytes: several million ids, and no more disk than a small volume has.
pub const LIST_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A list up to this size stays in memory.
const MEMORY_BYTES: usize = 1024 * 1024;
/// How many chunks wait to be written.
const CHUNKS_WAITING: usize = 16;

/// A list that is being taken in.
pub(super) struct Spool {
    chunks: mpsc::Sender<Vec<u8>>,
    writer: JoinHandle<io::Result<SpooledTempFile>>,
    /// How many bytes it still takes.
    room: usize,
}

/// Why a list was not taken in.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpoolError {
    /// It has more bytes than it may.
    #[error("it is too large; at most {LIST_BYTES_MAX} bytes are taken")]
    TooLarge,
    /// The temporary file failed.
    #[error("it cannot be kept in {folder}: {0}", folder = std::env::temp_dir().display())]
    File(#[from] io::Error),
    /// Its source failed.
    #[error("it cannot be read: {0}")]
    Source(io::Error),
}

impl Spool {
    /// An empty one for at most `room` bytes.
    pub(super) fn new(room: usize) -> Self {
        let (chunks, mut taken) = mpsc::channel::<Vec<u8>>(CHUNKS_WAITING);
        let writer = tokio::task::spawn_blocking(move || {
            let mut file = tempfile::spooled_tempfile(MEMORY_BYTES);
            while let Some(chunk) = taken.blocking_recv() {
                file.write_all(&chunk)?;
            }
            file.rewind()?;
            Ok(file)
        });
        Self { chunks, writer, room }
    }

    /// Takes the next bytes in.
    ///
    /// # Errors
    /// There are too many, or the file failed; the spool is of no use afterwards.
    pub(super) async fn write(&mut self, chunk: &[u8]) -> Result<(), SpoolError> {
        self.room = self.room.checked_sub(chunk.len()).ok_or(SpoolError::TooLarge)?;
        if self.chunks.send(chunk.to_vec()).await.is_ok() {
            return Ok(());
        }
        // The writer has stopped before its time: it says why.
        (&mut self.writer).await.map_err(io::Error::other)??;
        Err(io::Error::other("its writer has stopped").into())
    }

    /// The whole list, to be read from its start.
    pub(super) async fn finish(self) -> Result<SpooledTempFile, SpoolError> {
        drop(self.chunks);
        Ok(self.writer.await.map_err(io::Error::other)??)
    }
}
