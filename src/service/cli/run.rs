//! `run`: the controller.
//!
//! Nothing is started before the config is good. Tested in `tests/it/cli.rs` and by the live tests.

use std::process::ExitCode;

use super::check;
use super::tree::ConfigArgs;
use crate::service::wiring;

/// Runs the controller until it is told to stop.
pub(super) fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let loaded = check::load(args)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(wiring::run(loaded))
}
