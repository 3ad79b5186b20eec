//! A stream that says nothing.
//!
//! Must never hand over an event. Tested in tests/it/streams.rs.

use crate::contract::{EventStream, Events, StreamError};

/// A stream that does nothing until it is stopped: for a controller that lives from triggers alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Noop;

impl EventStream for Noop {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        events.stopping().await;
        Ok(())
    }
}
