//! The command line.

mod args;

pub use args::{Color, GlobalArgs, Output, SERVER_DEFAULT};
