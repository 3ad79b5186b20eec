//! Standard error behind a bounded buffer and a thread of its own, so that a slow reader of the log costs lines, not
//! runs.
//!
//! Must never block a caller and never grow beyond its bound. What had to be dropped is counted and said in one line
//! once the reader keeps up again. Tested below with a writer that stands still.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How many bytes may wait for the reader: about 40,000 lines, which no reader that works falls behind.
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The way to the writing thread; clones share it.
#[derive(Clone)]
pub(super) struct LogWriter(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    buffer: Vec<u8>,
    dropped: u64,
    /// What the thread has taken is not written yet.
    writing: bool,
    closed: bool,
}

impl LogWriter {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let thread = Arc::clone(&shared);
        std::thread::Builder::new().name("evenkeel-log".into()).spawn(move || thread.write_all_to(out))?;
        Ok(Self(shared))
    }

    /// Waits until everything is written, at most so long; says whether it was.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let state = self.0.lock();
        let pending = |s: &mut State| !s.closed && (s.writing || !s.buffer.is_empty());
        let (_state, timeout) =
            self.0.changed.wait_timeout_while(state, patience, pending).unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.closed || state.buffer.len() + line.len() > BUFFER_BYTES_MAX {
            state.dropped += 1;
            return;
        }
        state.buffer.extend_from_slice(line);
        // Only the first line of a batch has to wake the thread, which may wait with a flusher on the same condition.
        if state.buffer.len() == line.len() {
            self.changed.notify_all();
        }
    }

    fn write_all_to(&self, mut out: impl Write) {
        let mut batch = Vec::new();
        loop {
            let dropped = self.take(&mut batch);
            let mut written = out.write_all(&batch);
            if written.is_ok() && dropped > 0 {
                written =
                    writeln!(out, "evenkeel: {dropped} log lines were dropped: standard error is read too slowly");
            }
            let written = written.and_then(|()| out.flush());
            batch.clear();
            let mut state = self.lock();
            state.writing = false;
            // Nobody reads any more; a closed log is no reason to stop.
            state.closed = written.is_err();
            self.changed.notify_all();
            if state.closed {
                state.buffer = Vec::new();
                return;
            }
        }
    }

    /// Waits for lines and takes them all.
    fn take(&self, batch: &mut Vec<u8>) -> u64 {
        let state = self.lock();
        let mut state = self.changed.wait_while(state, |s| s.buffer.is_empty()).unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.buffer, batch);
        state.writing = true;
        std::mem::take(&mut state.dropped)
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes nothing until its gate opens.
    struct Gated {
        open: std::sync::mpsc::Receiver<()>,
        is_open: bool,
        got: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !self.is_open {
                self.open.recv().unwrap();
                self.is_open = true;
            }
            self.got.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stands_still_costs_lines_and_says_so() {
        let (open_gate, open) = std::sync::mpsc::channel();
        let got = Arc::new(Mutex::new(Vec::new()));
        let mut log = LogWriter::start(Gated { open, is_open: false, got: Arc::clone(&got) }).unwrap();
        let line = [b'x'; 1024];
        // The thread may have taken one batch, the buffer takes another; the rest has no place.
        for _ in 0..3 * BUFFER_BYTES_MAX / line.len() {
            log.write_all(&line).unwrap();
        }
        assert!(!log.flush(Duration::from_millis(1)), "nothing can be written yet");
        open_gate.send(()).unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        let got = got.lock().unwrap();
        assert!(got.len() >= BUFFER_BYTES_MAX && got.len() <= 2 * BUFFER_BYTES_MAX + 200, "{}", got.len());
        assert!(String::from_utf8_lossy(&got).contains("log lines were dropped"));
    }

    #[test]
    fn a_log_that_nobody_reads_any_more_stops_nothing() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut log = LogWriter::start(Broken).unwrap();
        log.write_all(b"one\n").unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        log.write_all(b"two\n").unwrap();
        assert!(log.flush(Duration::from_secs(60)));
    }
}
