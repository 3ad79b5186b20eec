//! What this process takes from itself so that its commands do not have it: core files, and files that others can read.

use std::io;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, setrlimit, umask};

/// Lets this process and every command that it starts from now on write no core files (they would hold secrets) and
/// make files that only their owner can read (umask 077). A command that must do otherwise says so itself (`umask
/// 022`).
///
/// For a program's `main`: it changes the whole process, so a library must not call it on its own.
///
/// # Errors
/// The system refused the limit.
pub fn harden_process() -> io::Result<()> {
    umask(Mode::RWXG | Mode::RWXO);
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}
