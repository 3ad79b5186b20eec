//! The environment, as a value: read once at the start, so that tests need not change the process's own.
//!
//! Must never be printed: it holds secrets.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// The environment variables of a process.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<OsString, OsString>);

/// Why a variable gives no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoText {
    Unset,
    Empty,
    NotUtf8,
}

impl Variables {
    /// Those of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// The value of a variable as it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// The value of a variable as text that is not empty.
    pub(super) fn text(&self, name: &str) -> Result<&str, NoText> {
        text_of(self.get(name).ok_or(NoText::Unset)?)
    }

    /// The variables whose names start so, in the order of their names; names that are no UTF-8 cannot be meant.
    pub(super) fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a OsStr)> {
        self.0
            .iter()
            .filter_map(|(name, value)| Some((name.to_str()?, value.as_os_str())))
            .filter(move |(name, _)| name.starts_with(prefix))
    }
}

pub(super) fn text_of(value: &OsStr) -> Result<&str, NoText> {
    match value.to_str() {
        None => Err(NoText::NotUtf8),
        Some("") => Err(NoText::Empty),
        Some(text) => Ok(text),
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variables({})", self.0.len())
    }
}
