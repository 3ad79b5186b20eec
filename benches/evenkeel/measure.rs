//! CPU time, wall time, and how they are printed.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::alloc;

/// A moment, on the wall and on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    wall: Instant,
    cpu: Duration,
    allocations: i64,
}

/// What so many items took.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) items: u64,
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) allocations: i64,
}

impl Mark {
    pub(crate) fn now() -> Self {
        Self { allocations: alloc::allocations(), wall: Instant::now(), cpu: cpu() }
    }

    pub(crate) fn spent(&self, items: u64) -> Spent {
        Spent {
            items,
            cpu: cpu() - self.cpu,
            wall: self.wall.elapsed(),
            allocations: alloc::allocations() - self.allocations,
        }
    }
}

impl Spent {
    /// CPU time of one item in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.items as f64
    }
}

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Does it so many times and gives the run in the middle, by CPU time.
pub(crate) fn median(times: usize, mut run: impl FnMut() -> Spent) -> Spent {
    let mut runs: Vec<Spent> = (0..times).map(|_| run()).collect();
    runs.sort_by(|a, b| a.cpu_us().total_cmp(&b.cpu_us()));
    runs[times / 2]
}

/// The same with the floor beside: one run of each in turn, so that both see the same machine.
pub(crate) fn beside(times: usize, mut floor: impl FnMut() -> Spent, mut run: impl FnMut() -> Spent) -> (Spent, f64) {
    let mut floors = Vec::with_capacity(times);
    let spent = median(times, || {
        floors.push(floor().cpu_us());
        run()
    });
    (spent, middle(floors))
}

/// The one in the middle.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The middle and the tail of many durations, in microseconds.
pub(crate) fn percentiles(mut durations: Vec<Duration>) -> (f64, f64) {
    durations.sort_unstable();
    let at = |share: f64| durations[((durations.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    (at(0.5), at(0.99))
}

/// The lines of a run.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Map<String, Value>>,
}

impl Report {
    /// Adds a case and prints it, with the floor's CPU time an item where there is one to compare with.
    #[expect(clippy::print_stdout, reason = "the lines are what is asked for")]
    pub(crate) fn case(&mut self, name: &str, spent: Spent, floor: Option<f64>, more: Value) {
        let mut line = Map::new();
        line.insert("case".into(), json!(name));
        line.insert("items".into(), json!(spent.items));
        line.insert("seconds".into(), json!(round(spent.wall.as_secs_f64(), 6)));
        line.insert("cpu_us_per_item".into(), json!(round(spent.cpu_us(), 4)));
        if let Some(floor) = floor {
            line.insert("floor_cpu_us_per_item".into(), json!(round(floor, 4)));
            line.insert("of_floor".into(), json!(round(floor / spent.cpu_us(), 3)));
        }
        line.insert("allocations_per_item".into(), json!(round(spent.allocations as f64 / spent.items as f64, 3)));
        if let Value::Object(more) = more {
            line.extend(more);
        }
        println!("{}", Value::Object(line.clone()));
        self.lines.push(line);
    }

    /// The same as a table for people.
    pub(crate) fn table(&self) {
        const COLUMNS: [&str; 6] = ["case", "items", "seconds", "cpu_us_per_item", "floor_cpu_us_per_item", "of_floor"];
        eprintln!(
            "{:<22} {:>8} {:>9} {:>8} {:>8} {:>8}  more",
            "case", "items", "seconds", "cpu us", "floor us", "of floor"
        );
        for line in &self.lines {
            let text = |key: &str| line.get(key).map(|value| value.to_string().replace('"', "")).unwrap_or_default();
            let [case, items, seconds, cpu, floor, of_floor] = COLUMNS.map(text);
            let more = line.iter().filter(|(key, _)| !COLUMNS.contains(&key.as_str()));
            let more: Vec<_> = more.map(|(key, value)| format!("{key}={value}")).collect();
            eprintln!("{case:<22} {items:>8} {seconds:>9} {cpu:>8} {floor:>8} {of_floor:>8}  {}", more.join(" "));
        }
    }
}

pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
