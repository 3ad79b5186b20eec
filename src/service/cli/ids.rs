//! Ids from the command line or standard input, checked before anything is done with them.
//!
//! Must never change an id: no trimming, no normalising (I1). Tested below and in `tests/it/cli.rs`.

use std::io::BufRead;

use super::exit::UsageError;
use crate::id;

/// The ids that were typed; `-` stands for those on standard input, one a line, where empty lines are passed over.
///
/// # Errors
/// A text is no id, as a [`UsageError`]; or standard input cannot be read.
pub fn read_ids(typed: &[String], input: impl BufRead) -> anyhow::Result<Vec<String>> {
    let mut ids = Vec::with_capacity(typed.len());
    let mut input = Some(input);
    for text in typed {
        match (text.as_str(), input.is_some()) {
            ("-", true) => read_lines(&mut ids, input.take())?,
            ("-", false) => return Err(UsageError("- can stand once only".to_owned()).into()),
            (text, _) => {
                id::check(text).map_err(|why| UsageError(format!("\"{}\": {why}", shown(text))))?;
                ids.push(text.to_owned());
            }
        }
    }
    Ok(ids)
}

fn read_lines(ids: &mut Vec<String>, input: Option<impl BufRead>) -> anyhow::Result<()> {
    let Some(input) = input else { return Ok(()) };
    for (number, line) in (1_u64..).zip(input.split(b'\n')) {
        let line = line?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.is_empty() {
            continue;
        }
        let id = id::from_bytes(line).map_err(|why| UsageError(format!("standard input, line {number}: {why}")))?;
        ids.push(id.to_owned());
    }
    Ok(())
}

/// Enough of a text to find it again.
fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    text.chars().take(CHARS_MAX).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(typed: &[&str], input: &[u8]) -> Result<Vec<String>, String> {
        let typed = typed.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        read_ids(&typed, input).map_err(|e| e.to_string())
    }

    #[test]
    fn i1_ids_are_taken_as_they_are() {
        assert_eq!(read(&["a", "-b", " c "], b"x"), Ok(vec!["a".into(), "-b".into(), " c ".into()]));
        assert_eq!(read(&["a", "-", "z"], b"b\r\n\n c\nd"), Ok(["a", "b", " c", "d", "z"].map(Into::into).to_vec()));
        assert_eq!(read(&["-"], b""), Ok(vec![]));
    }

    #[test]
    fn i1_what_is_no_id_is_refused_with_its_place() {
        for (typed, input, says) in [
            (["a", ""].as_slice(), b"".as_slice(), "\"\": an id is empty"),
            (&["a\nb"], b"", "\"a\\nb\": an id holds U+000A at byte 1"),
            (&["-"], b"ok\n\xff\n", "standard input, line 2: an id is not UTF-8 from byte 0 on"),
            (&["-", "-"], b"", "- can stand once only"),
        ] {
            let error = read(typed, input).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
