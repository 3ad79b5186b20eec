//! What a command writes: log lines while it runs, and the last of it for the error.
//!
//! Must never hold more than its caps, however much comes, nor let output act on a terminal. Tested by tables below and
//! with real processes in `tests`.

use super::text::{ERROR_BYTES_MAX, Secrets};

/// How much of each of a command's outputs becomes log lines; the rest is read and dropped.
pub(super) const LOGGED_BYTES_MAX: usize = 1024 * 1024;
/// What a line costs of that besides its bytes, so that a million empty lines are no million log lines.
const LINE_COST: usize = 64;
/// A longer line is logged in parts of this many bytes.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// How much of the end of an output is kept.
const TAIL_BYTES: usize = 64 * 1024;
/// How many lines of it make the error.
const ERROR_LINES_MAX: usize = 10;

/// Which output it is, and how loud its lines are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// Logged as info.
    Stdout,
    /// Logged as debug: its end is the error if there is one.
    Stderr,
}

/// One output of one command.
pub(super) struct Output<'a> {
    id: &'a str,
    stream: Stream,
    secrets: &'a Secrets,
    line: Vec<u8>,
    logged: usize,
    tail: Vec<u8>,
}

impl<'a> Output<'a> {
    /// An output of the command that runs for this id.
    pub(super) const fn new(id: &'a str, stream: Stream, secrets: &'a Secrets) -> Self {
        Self { id, stream, secrets, line: Vec::new(), logged: 0, tail: Vec::new() }
    }

    /// Takes what was read.
    pub(super) fn take(&mut self, chunk: &[u8]) {
        if self.stream == Stream::Stderr {
            self.keep(chunk);
        }
        for part in chunk.split_inclusive(|b| *b == b'\n') {
            for piece in part.chunks(LINE_BYTES_MAX) {
                if self.logged >= LOGGED_BYTES_MAX {
                    return;
                }
                self.line.extend_from_slice(piece);
                if self.line.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                    self.log_line();
                }
            }
        }
    }

    /// Logs what stands on the last line, if it does not end with one.
    pub(super) fn end(&mut self) {
        if !self.line.is_empty() {
            self.log_line();
        }
    }

    /// The last lines in one, for an error.
    pub(super) fn last_lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.tail);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        for line in text.lines().rev().map(|line| self.secrets.clean(line, ERROR_BYTES_MAX)) {
            if line.is_empty() {
                continue;
            }
            bytes += line.len() + " | ".len();
            if lines.len() == ERROR_LINES_MAX || (bytes > ERROR_BYTES_MAX && !lines.is_empty()) {
                break;
            }
            lines.push(line);
        }
        lines.reverse();
        lines.join(" | ")
    }

    /// Keeps the end; twice as much is held at times, so that moving it costs little.
    fn keep(&mut self, chunk: &[u8]) {
        self.tail.extend_from_slice(chunk);
        if self.tail.len() > 2 * TAIL_BYTES {
            self.tail.drain(..self.tail.len() - TAIL_BYTES);
        }
    }

    fn log_line(&mut self) {
        self.logged += self.line.len() + LINE_COST;
        let line = self.secrets.clean(&String::from_utf8_lossy(&self.line), LINE_BYTES_MAX);
        self.line.clear();
        if !line.is_empty() {
            self.log(&line);
        }
        if self.logged >= LOGGED_BYTES_MAX {
            self.log("(more output is read and dropped: this run has written its share of the log)");
        }
    }

    fn log(&self, line: &str) {
        match self.stream {
            Stream::Stdout => tracing::info!(target: "evenkeel::hook", id = self.id, stream = "stdout", "{line}"),
            Stream::Stderr => tracing::debug!(target: "evenkeel::hook", id = self.id, stream = "stderr", "{line}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_the_error_and_bounded() {
        let secrets = Secrets::default();
        let mut output = Output::new("a", Stream::Stderr, &secrets);
        assert_eq!(output.last_lines(), "");
        output.take(b"first\n\n\x1b[31mno such zone\x1b[0m\r\nlast");
        assert_eq!(output.last_lines(), "first | no such zone | last");
        for number in 0..100_000 {
            output.take(format!("line {number}\n").as_bytes());
        }
        assert!(output.tail.len() <= 2 * TAIL_BYTES);
        let error = output.last_lines();
        assert!(error.starts_with("line 99990 | ") && error.ends_with(" | line 99999"), "{error}");
        output.take(&vec![0xff; 1_000_000]);
        assert!(output.last_lines().len() <= ERROR_BYTES_MAX);
    }

    #[test]
    fn a_flood_is_neither_held_nor_logged_beyond_its_share() {
        let secrets = Secrets::default();
        for chunk in [&b"y\n"[..], b"\n", &[b'x'; 3000]] {
            let mut output = Output::new("a", Stream::Stdout, &secrets);
            for _ in 0..LOGGED_BYTES_MAX {
                output.take(chunk);
                assert!(output.line.len() < LINE_BYTES_MAX);
            }
            output.end();
            assert!(output.logged <= LOGGED_BYTES_MAX + LINE_BYTES_MAX + LINE_COST);
            assert!(output.tail.is_empty());
        }
    }
}
