//! Where ids go that were given up (D3).

use super::BoxFuture;
use super::cause::Cause;

/// Takes the ids that were given up, durably: a topic, a table, a ticket.
pub trait DeadLetter: Send + Sync + 'static {
    /// Sends one letter and waits until it is durable; only then does what the id was owed for count as done (D3).
    ///
    /// # Errors
    /// The letter may not have arrived; it is sent again with growing delays.
    ///
    /// # Cancel safety
    /// May be dropped: the letter is then sent again in another term.
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), DeadLetterError>>;
}

/// An id that was given up, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The id.
    pub id: String,
    /// The error of its last attempt.
    pub error: String,
    /// How many attempts there were.
    pub attempts: u32,
    /// What the id was owed for.
    pub causes: Vec<Cause>,
    /// The fencing token of the last run, as text.
    pub fencing_token: String,
}

/// A letter could not be sent.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct DeadLetterError(pub String);
