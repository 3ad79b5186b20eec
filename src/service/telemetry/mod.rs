//! What leaves the process for people and machines that watch it: log lines, the Prometheus page, and all of it to a
//! collector.
//!
//! Must never slow a run: a log reader, a scraper or a collector that is slow or dead costs lines, a scrape or spans,
//! never time of the engine. The names are binding (surface: "Telemetry names"). Tested inline, by golden lines in
//! `tests/it/logs.rs`, and in `tests/it/otlp.rs`.

pub mod logs;
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "without_otlp.rs"]
pub mod otlp;
pub mod run_line;
pub(crate) mod text;
mod writer;
