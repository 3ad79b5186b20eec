//! Ids from the command line and from standard input, checked before they are sent.
//!
//! Must never change an id, nor wait for the end of standard input before the first ids are sent. Tested in
//! `tests/it/client.rs`.

use std::io::BufRead;

use tokio::sync::mpsc;

use crate::id::{self, ID_BYTES_MAX};
use crate::service::cli::{UsageError, read_ids};

/// The ids that were typed.
///
/// # Errors
/// A text is no id, as a [`UsageError`].
pub(super) fn checked(typed: &[String]) -> anyhow::Result<Vec<String>> {
    if typed.iter().any(|id| id == "-") {
        return Err(UsageError("- stands for standard input, which this command does not read".into()).into());
    }
    read_ids(typed, std::io::empty())
}

/// A line of standard input.
pub(super) enum Line {
    Id(String),
    /// No id: the number of the line, and which rule it breaks.
    Bad(u64, String),
    /// Reading failed.
    Broken(String),
}

/// The lines of the input as they come; empty lines are passed over.
pub(super) fn lines(input: Box<dyn BufRead + Send>) -> mpsc::Receiver<Line> {
    /// So many lines are read ahead.
    const AHEAD: usize = 10_000;
    let (to, lines) = mpsc::channel(AHEAD);
    let read = move || {
        let mut input = input;
        for number in 1.. {
            let line = match next(&mut *input) {
                Ok(None) => return,
                Ok(Some(line)) if line.is_empty() => continue,
                Ok(Some(line)) => match id::from_bytes(&line) {
                    Ok(id) => Line::Id(id.to_owned()),
                    Err(error) => Line::Bad(number, error.to_string()),
                },
                Err(error) => Line::Broken(error.to_string()),
            };
            let is_last = matches!(line, Line::Broken(_));
            if to.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    };
    // A thread that waits for input cannot be told to stop: it must not be one that the runtime waits for.
    std::thread::spawn(read);
    lines
}

/// One line, of which no more is kept than tells that it is too long.
fn next(input: &mut dyn BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut is_any = false;
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            break;
        }
        is_any = true;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..end.unwrap_or(bytes.len())];
        // One more for the carriage return, one to be too long.
        let room = (ID_BYTES_MAX + 2).saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = end.map_or(bytes.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(is_any.then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_lines_are_ids_as_they_are() {
        let input: &[u8] = b"a\n\n b \r\nx\x00\n\xff\nlast";
        let mut lines = lines(Box::new(input));
        let mut read = Vec::new();
        while let Some(line) = lines.blocking_recv() {
            read.push(match line {
                Line::Id(id) => id,
                Line::Bad(number, reason) => format!("{number}: {reason}"),
                Line::Broken(reason) => reason,
            });
        }
        assert_eq!(read[..2], ["a", " b "]);
        assert!(
            read[2].starts_with("4: an id holds U+0000") && read[3].starts_with("5: an id is not UTF-8"),
            "{read:?}"
        );
        assert_eq!(read[4..], ["last"]);
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut input = std::io::BufReader::new(std::io::Read::take(std::io::repeat(b'x'), 8 << 20));
        assert_eq!(next(&mut input).unwrap().unwrap().len(), ID_BYTES_MAX + 2);
        assert_eq!(next(&mut input).unwrap(), None);
    }
}
