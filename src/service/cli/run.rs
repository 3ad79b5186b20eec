//! `run`: the controller.
//!
//! Nothing is started before the config is good. Tested in `tests/it/run.rs` and by the live tests.

use std::process::ExitCode;
use std::time::Duration;

use super::check;
use super::tree::ConfigArgs;
use crate::service::wiring;

/// How long what is left of the runtime is waited for at the end: a run that blocks its thread would keep it for ever.
const LAST_TASKS: Duration = Duration::from_secs(1);

/// Runs the controller until it is told to stop.
pub(super) fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    if wiring::is_first() {
        return super::block_on(wiring::run_as_child());
    }
    let loaded = check::load(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(wiring::run(loaded));
    runtime.shutdown_timeout(LAST_TASKS);
    result
}
