//! What is wrong with a config, and where: all of it at once.
//!
//! Must never hold the value of a secret, nor a line of the file, since a line may hold one.
//! Tested by the table of bad configs in `tests/it/config.rs`.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory as _};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A line and column of the config file, both from 1.
    File {
        /// The line.
        line: u64,
        /// The column, in characters.
        column: u64,
    },
    /// An environment variable that overrides a key.
    Variable(Arc<str>),
}

impl Place {
    pub(super) const START: Self = Self::File { line: 1, column: 1 };
}

/// One thing that is wrong, or worth a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// The key, from the top: `streams.orders.kafka.topics[0]`; empty for the file as a whole.
    pub path: String,
    /// What is wrong, and what is allowed or to be done.
    pub message: String,
}

impl Fault {
    /// One line: place, key, message.
    #[must_use]
    pub fn line<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        FaultLine { fault: self, file }
    }
}

struct FaultLine<'a> {
    fault: &'a Fault,
    file: &'a str,
}

impl fmt::Display for FaultLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault.place {
            Place::File { line, column } => write!(f, "{}:{line}:{column}: ", self.file)?,
            Place::Variable(name) => write!(f, "{name}: ")?,
        }
        if !self.fault.path.is_empty() {
            write!(f, "{}: ", printable(&self.fault.path))?;
        }
        f.write_str(&printable(&self.fault.message))
    }
}

/// The text without what would move the cursor, colour the terminal or turn the line around.
fn printable(text: &str) -> Cow<'_, str> {
    let is_safe = |c: char| !matches!(c.general_category(), GeneralCategory::Control | GeneralCategory::Format);
    if text.chars().all(is_safe) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().map(|c| if is_safe(c) { c.to_string() } else { c.escape_unicode().to_string() });
    Cow::Owned(escaped.collect())
}

/// There is no usable config.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No file was named, and none is where it is looked for.
    #[error("found no config; looked for {}", list(.looked))]
    NotFound {
        /// The places.
        looked: Vec<PathBuf>,
    },
    /// The file that was named cannot be read.
    #[error("cannot read the config {}: {reason}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The file says what makes no sense.
    #[error("{}", faults_text(.file, .faults))]
    Faults {
        /// The file.
        file: String,
        /// Everything that is wrong, in the order of the file.
        faults: Vec<Fault>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn faults_text(file: &str, faults: &[Fault]) -> String {
    let count = match faults.len() {
        1 => "1 fault".to_owned(),
        n => format!("{n} faults"),
    };
    let lines = faults.iter().map(|fault| format!("\n  {}", fault.line(file))).collect::<String>();
    format!("{count} in the config{lines}")
}
