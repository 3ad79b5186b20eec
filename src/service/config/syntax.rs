//! Files that are no YAML: the reader's error in our words, with what to do.
//!
//! Must never quote the file, since the line may hold a secret. Tested by the table of bad files in
//! `tests/it/config.rs`.

use serde_saphyr::Error;

use super::fault::{Fault, Place};
use super::tree::{Node, Value, place};

/// The fault for an error of the YAML reader.
pub(super) fn fault(text: &str, error: &Error) -> Fault {
    let place = error.location().as_ref().map_or(Place::START, place);
    let mut cause = error.without_snippet();
    while let Error::AliasError { error, .. } = cause {
        cause = error.without_snippet();
    }
    let message = match cause {
        Error::MultipleDocuments { .. } => "a second document starts here; a config is one document".to_owned(),
        Error::Budget { .. } => {
            "too deeply nested, or too many values once its aliases are expanded; a config is small and flat".to_owned()
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => "its aliases expand to too many values".to_owned(),
        Error::UnknownAnchor { .. } => {
            "an alias without an anchor; a text that starts with * stands in quotes".to_owned()
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias that contains itself".to_owned(),
        Error::Unexpected { expected: "string scalar", .. } => "a key must be a text".to_owned(),
        Error::UnsupportedTag { .. } => "a tag; a text that starts with ! stands in quotes".to_owned(),
        // The parser's own errors quote one character at most.
        Error::ExternalMessage { .. } => syntax(text, &place, &bare(cause)),
        _ => "not something that a config is made of; allowed: texts, lists and blocks of keys".to_owned(),
    };
    Fault { place, path: String::new(), message }
}

/// What the reader says, without the place, which stands in front already.
fn bare(error: &Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn syntax(text: &str, place: &Place, says: &str) -> String {
    if says.starts_with("tabs ") {
        return "a tab indents this line; YAML is indented by spaces".to_owned();
    }
    if says.starts_with("recursion limit") {
        return "too deeply nested; a config is small and flat".to_owned();
    }
    let hint = if has_bare_variable(text, place) { "; inside [ ] and { } write \"${NAME}\" in quotes" } else { "" };
    format!("not YAML: {says}{hint}")
}

/// Whether the line of the error has a `${` without a quote before it, which YAML reads as a map in a list.
fn has_bare_variable(text: &str, place: &Place) -> bool {
    let Place::File { line, .. } = place else { return false };
    let line = usize::try_from(line.saturating_sub(1)).ok().and_then(|n| text.lines().nth(n));
    line.is_some_and(|line| line.contains("${"))
}

/// A file that is no UTF-8, with the place of the first wrong byte.
pub(super) fn not_utf8(bytes: &[u8], valid_up_to: usize) -> Fault {
    let valid = String::from_utf8_lossy(&bytes[..valid_up_to]);
    let line_start = valid.rfind('\n').map_or(0, |at| at + 1);
    let place = Place::File {
        line: valid.matches('\n').count() as u64 + 1,
        column: valid[line_start..].chars().count() as u64 + 1,
    };
    let utf16 = bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]);
    let message =
        if utf16 { "UTF-16; save the file as UTF-8" } else { "not UTF-8 from here on; save the file as UTF-8" };
    Fault { place, path: String::new(), message: message.to_owned() }
}

/// What is wrong with a file that is YAML and no block of keys.
pub(super) fn not_a_block(root: &Node) -> Option<String> {
    const HINT: &str = "`evenkeel config example` prints a config, `evenkeel init` makes a project";
    match &root.value {
        Value::Map(_) => None,
        Value::Null => Some(format!("the file is empty; {HINT}")),
        _ => Some(format!("not a block of keys; {HINT}")),
    }
}
