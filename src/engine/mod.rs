//! The engine: runs what the scheduler decides.

mod handle;
pub mod view;

pub use handle::{Handle, HandleError, Select};
