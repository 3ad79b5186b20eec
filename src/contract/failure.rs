//! What a run that failed says.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why a run failed, and whether to try again.
///
/// Any standard error becomes a transient failure by `?`. A `Failure` is not itself a standard error, so that it cannot
/// be wrapped by accident and lose its kind or its delay on the way.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
}

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Tried again after a growing delay (D2), or after this one.
    Transient(Option<Duration>),
    /// Not tried again by itself: the id is given up and parked (D3).
    Terminal,
}

impl Failure {
    /// A failure that another attempt may mend.
    #[must_use]
    pub fn transient(message: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Transient(None), message: message.to_string() }
    }

    /// A failure that no further attempt will mend.
    #[must_use]
    pub fn terminal(message: impl fmt::Display) -> Self {
        Self { kind: FailureKind::Terminal, message: message.to_string() }
    }

    /// Tries again after this delay instead of the growing one; makes the failure transient. Zero means at once, but
    /// not twice within `min_requeue`, and it is still a failure.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.kind = FailureKind::Transient(Some(delay));
        self
    }

    /// What follows.
    #[must_use]
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The message, with the causes of the error it was made from.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn into_message(self) -> String {
        self.message
    }
}

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Many errors print their source themselves; saying it twice helps nobody.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        Self { kind: FailureKind::Transient(None), message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot reach the server")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn d1_any_error_is_transient_and_names_its_causes() {
        fn fails() -> Result<(), Failure> {
            Err(Outer(std::io::Error::other("connection refused")))?
        }
        let failure = fails().unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Transient(None));
        assert_eq!(failure.message(), "cannot reach the server: connection refused");
    }

    #[test]
    fn a_delay_of_zero_is_still_a_failure() {
        assert_eq!(
            Failure::transient("x").retry_after(Duration::ZERO).kind(),
            FailureKind::Transient(Some(Duration::ZERO))
        );
    }
}
