//! What leaves the process for people and machines that watch it: log lines and the Prometheus page.
//!
//! Must never slow a run: a log reader or a scraper that is slow or dead costs lines or a scrape, never time of the
//! engine. The names are binding (surface: "Telemetry names"). Tested inline and by golden lines in `tests/it/logs.rs`.

pub mod logs;
pub mod metrics;
pub mod run_line;
pub(crate) mod text;
mod writer;
