//! A secret that an adapter uses and nobody is shown (B87).
//!
//! Must never give its text to `Debug`, nor to anything outside the crate. Tested below.

use std::fmt;

/// A password or key; shown as `***` everywhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one who must use it.
    #[cfg_attr(not(any(feature = "kafka", feature = "etcd")), allow(dead_code))]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b87_a_secret_is_never_shown() {
        let secret = Secret::new("canary");
        assert_eq!(format!("{secret:?} {secret:#?}"), "*** ***");
        assert_eq!(secret.expose(), "canary");
    }
}
