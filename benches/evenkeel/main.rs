//! How fast the engine is, beside a floor measured in the same run.
//!
//! Prints a JSON object a line on standard output and a table on standard error. CPU time is that of the whole
//! process, user and system, so that other work on the machine matters less. `--reconciles N` does exactly N no-op
//! reconciles (whole thousands) and nothing else, for counting instructions. Other arguments choose cases by a part of
//! their names.

#![allow(clippy::cast_possible_truncation, reason = "small numbers of this program's own")]

mod alloc;
mod bed;
#[cfg(feature = "kafka")]
#[expect(dead_code, clippy::unwrap_used, clippy::print_stdout, reason = "the live tests need all of it")]
#[path = "../../tests/live/broker.rs"]
mod broker;
mod delays;
mod floor;
#[cfg(feature = "kafka")]
mod kafka;
mod loops;
mod measure;

use measure::Report;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures under a name.
type Case = fn(&str, &mut Report);

const CASES: &[(&str, Case)] = &[
    ("floor/own/10000", loops::floor_small),
    ("floor/own/1000000", loops::floor_large),
    ("loop/noop/10000", loops::noop_small),
    ("loop/noop/1000000", loops::noop_large),
    ("loop/single/10000", loops::single),
    ("loop/dedup/10", loops::dedup),
    ("loop/idle-latency", loops::idle_latency),
    ("loop/two-shards", loops::two_shards),
    ("delay/insert/1000000", delays::insert),
    ("delay/lateness", delays::lateness),
    #[cfg(feature = "kafka")]
    ("kafka/end-to-end", kafka::end_to_end),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, count] = arguments.as_slice()
        && flag == "--reconciles"
    {
        let count = count.parse().expect("--reconciles takes a number");
        loops::exactly(count);
        return;
    }
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|part| name.contains(part.as_str()));
    let mut report = Report::default();
    for &(name, case) in CASES {
        if wanted(name) {
            case(name, &mut report);
        }
    }
    report.table();
}
