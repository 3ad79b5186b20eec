//! CPU time, wall time, and how they are printed.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// A moment, on the wall and on the CPU.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    wall: Instant,
    cpu: Duration,
    allocations: u64,
}

/// What passed since a mark.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) allocations: u64,
}

impl Mark {
    pub(crate) fn now() -> Self {
        Self { wall: Instant::now(), cpu: cpu(), allocations: crate::alloc::count() }
    }

    pub(crate) fn spent(&self) -> Spent {
        Spent {
            cpu: cpu() - self.cpu,
            wall: self.wall.elapsed(),
            allocations: crate::alloc::count() - self.allocations,
        }
    }
}

/// CPU time of this process, user and system.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The lines of a run.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Map<String, Value>>,
}

impl Report {
    /// Adds a case that did so many items.
    pub(crate) fn case(&mut self, name: &str, items: u64, spent: Spent, floor: Option<f64>, more: Value) {
        let per_item = spent.cpu.as_secs_f64() * 1e6 / items as f64;
        let mut line = Map::new();
        line.insert("case".into(), json!(name));
        line.insert("items".into(), json!(items));
        line.insert("seconds".into(), json!(round(spent.wall.as_secs_f64(), 6)));
        line.insert("cpu_us_per_item".into(), json!(round(per_item, 4)));
        if let Some(floor) = floor {
            line.insert("floor_cpu_us_per_item".into(), json!(round(floor, 4)));
            line.insert("of_floor".into(), json!(round(floor / per_item, 3)));
        }
        line.insert("allocations_per_item".into(), json!(round(spent.allocations as f64 / items as f64, 3)));
        if let Value::Object(more) = more {
            line.extend(more);
        }
        println!("{}", Value::Object(line.clone()));
        self.lines.push(line);
    }

    /// The same as a table for people.
    pub(crate) fn table(&self) {
        eprintln!("{:<26} {:>10} {:>9} {:>10} {:>9}  more", "case", "items", "seconds", "cpu us", "of floor");
        for line in &self.lines {
            let text = |key: &str| line.get(key).map(|value| value.to_string().replace('"', "")).unwrap_or_default();
            let known = ["case", "items", "seconds", "cpu_us_per_item", "floor_cpu_us_per_item", "of_floor"];
            let more: Vec<String> = line
                .iter()
                .filter(|(key, _)| !known.contains(&key.as_str()))
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            eprintln!(
                "{:<26} {:>10} {:>9} {:>10} {:>9}  {}",
                text("case"),
                text("items"),
                text("seconds"),
                text("cpu_us_per_item"),
                text("of_floor"),
                more.join(" ")
            );
        }
    }
}

pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
