//! Everything that needs no service: stores, leadership of one process, and streams that come from the process itself.
//!
//! Must never know the engine: it meets it through `contract` alone.

mod channel;
mod elector;
#[cfg(feature = "file-store")]
mod file;
#[cfg(feature = "file-store")]
mod lock;
mod memory;
mod noop;
mod resync;
mod seen;

pub use channel::{Closed, FromStream, Sender, channel, from_stream};
pub use elector::{LocalElector, ManualElector, ManualHandle};
#[cfg(feature = "file-store")]
pub use file::FileStore;
pub use memory::MemoryStore;
pub use noop::Noop;
pub use resync::{Listed, Resync};
