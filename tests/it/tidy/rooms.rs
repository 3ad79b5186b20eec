//! Who may know whom, and what the deciding rooms must do without.
//!
//! Must never list a room that a room only might need: an arrow is added with the code that needs it.
//! Tested below with planted faults.

use super::scan::{self, Path, Token};
use super::{Fault, File, Tree, style};

/// Each room and the rooms that it may name. ARCHITECTURE.md says why.
const ARROWS: [(&str, &[&str]); 12] = [
    ("id", &[]),
    ("scheduler", &["id"]),
    ("leadership", &["id"]),
    ("contract", &["id"]),
    ("engine", &["id", "scheduler", "leadership", "contract"]),
    ("kafka", &["id", "contract"]),
    ("etcd", &["id", "contract", "leadership"]),
    ("local", &["id", "contract"]),
    ("hooks", &["id", "contract"]),
    ("testing", &["id", "contract", "engine", "local"]),
    ("service", &["id", "contract", "engine", "kafka", "etcd", "local", "hooks"]),
    ("main", &["service"]),
];

/// Rooms that talk to something outside; within `service`, only `wiring` may name them.
const EDGES: [&str; 4] = ["kafka", "etcd", "local", "hooks"];

/// Libraries that one room keeps to itself, so that they can be exchanged there.
const FOREIGN: [(&str, &[&str]); 7] = [
    ("rdkafka", &["kafka"]),
    ("etcd_client", &["etcd"]),
    ("redb", &["local"]),
    ("axum", &["service"]),
    ("clap", &["service"]),
    ("anyhow", &["service", "main"]),
    ("serde_saphyr", &["service"]),
];

/// Where decisions are made: values that are given the time and answer with what is to be done.
const PURE: [&str; 4] = ["src/scheduler/", "src/leadership/", "src/kafka/ledger.rs", "src/kafka/ledger/"];

/// Words that no pure room needs, with what they would bring in.
const IMPURE_WORDS: [(&str, &str); 15] = [
    ("Instant", "a clock"),
    ("SystemTime", "a clock"),
    ("async", "waiting"),
    ("await", "waiting"),
    ("tokio", "a runtime"),
    ("futures", "a runtime"),
    ("tracing", "logging"),
    ("opentelemetry", "telemetry"),
    ("println", "output"),
    ("eprintln", "output"),
    ("rand", "randomness"),
    ("getrandom", "randomness"),
    ("RandomState", "randomness"),
    ("Mutex", "sharing"),
    ("RwLock", "sharing"),
];

/// Paths that no pure room may name; `*` at the front stands for any one name.
const IMPURE_PATHS: [(&[&str], &str); 9] = [
    (&["std", "fs"], "the disk"),
    (&["std", "net"], "the network"),
    (&["std", "io"], "input or output"),
    (&["std", "env"], "the environment"),
    (&["std", "process"], "processes"),
    (&["std", "thread"], "threads"),
    (&["std", "collections", "HashMap"], "an order that differs from run to run"),
    (&["std", "collections", "HashSet"], "an order that differs from run to run"),
    (&["*", "now"], "a clock"),
];

/// The room that a file of the package belongs to; `lib.rs` is none, it lists them.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("src/")?;
    match inside.split_once('/') {
        Some((room, _)) => Some(room),
        None => (inside == "main.rs").then_some("main"),
    }
}

/// How many times `super` leads from a file out of the crate: once from `src/id/mod.rs`.
fn depth(path: &str) -> usize {
    let names = path.strip_prefix("src/").unwrap_or(path).split('/').count();
    names - usize::from(path.ends_with("/mod.rs"))
}

/// Names of other rooms are only those that the table allows.
pub(super) fn arrows(file: &File) -> Vec<Fault> {
    let Some(from) = room(&file.path) else { return Vec::new() };
    let Some((_, allowed)) = ARROWS.iter().find(|(room, _)| *room == from) else {
        return vec![file.fault(1, format!("the room {from} is not in the table of rooms"))];
    };
    let tokens = scan::tokens(&file.text);
    let inline = scan::inline_depths(&tokens);
    let wiring = ["src/service/wiring.rs", "src/service/wiring/"].iter().any(|path| file.path.starts_with(path));
    let mut faults = Vec::new();
    for path in scan::paths(&tokens) {
        let Some(to) = target(&path, depth(&file.path) + inline[path.token]) else { continue };
        let named = path.names.join("::");
        if !ARROWS.iter().any(|(room, _)| *room == to) {
            faults.push(file.fault(path.line, format!("{named} hides whose it is; name its room")));
        } else if to != from && !allowed.contains(&to) {
            faults.push(file.fault(path.line, format!("{from} must not know {to} ({named})")));
        } else if from == "service" && EDGES.contains(&to) && !wiring {
            faults.push(file.fault(path.line, format!("within service only wiring knows {to}")));
        }
    }
    faults
}

/// The first name below the crate's root that a path leads to, if it goes by the root.
fn target<'a>(path: &Path<'a>, depth: usize) -> Option<&'a str> {
    let ups = path.names.iter().take_while(|name| **name == "super").count();
    match path.names[0] {
        "crate" | "evenkeel" => path.names.get(1).copied(),
        "super" if ups >= depth => path.names.get(ups).copied(),
        _ => None,
    }
}

/// Every room of `lib.rs` is in the table.
pub(super) fn listed(tree: &Tree) -> Vec<Fault> {
    let Some(lib) = tree.get("src/lib.rs") else { return Vec::new() };
    let tokens = scan::tokens(&lib.text);
    let mut faults = Vec::new();
    for pair in tokens.windows(2).filter(|pair| pair[0].text == "mod") {
        let room = pair[1].text;
        if !ARROWS.iter().any(|(name, _)| *name == room) {
            faults.push(lib.fault(pair[1].line, format!("the room {room} is not in the table of rooms")));
        }
    }
    faults
}

/// A library with a room of its own is named nowhere else.
pub(super) fn foreign(file: &File) -> Vec<Fault> {
    let Some(from) = room(&file.path) else { return Vec::new() };
    let mut faults = Vec::new();
    for path in scan::paths(&scan::tokens(&file.text)) {
        let rooms = FOREIGN.iter().find(|(library, _)| *library == path.names[0]).map(|(_, rooms)| *rooms);
        if rooms.is_some_and(|rooms| !rooms.contains(&from)) {
            faults.push(file.fault(path.line, format!("{from} must not know the library {}", path.names[0])));
        }
    }
    faults
}

/// The pure rooms read no clock, wait for nothing, and neither log nor touch anything outside; their tests may.
pub(super) fn pure(file: &File) -> Vec<Fault> {
    if style::is_test(&file.path) || !PURE.iter().any(|path| file.path.starts_with(path)) {
        return Vec::new();
    }
    let tokens = scan::tokens(&file.text);
    let tests = scan::test_items(&tokens);
    let in_tests = |at: usize| tests.iter().any(|range| range.contains(&at));
    let words = tokens.iter().enumerate().filter_map(|(at, token)| Some((at, token.line, impure_word(token)?)));
    let paths = scan::paths(&tokens);
    let paths = paths.iter().filter_map(|path| Some((path.token, path.line, impure_path(path)?)));
    let mut found: Vec<_> = words.chain(paths).filter(|(at, ..)| !in_tests(*at)).collect();
    found.sort_unstable();
    found.dedup_by_key(|(at, ..)| *at);
    found.into_iter().map(|(_, line, what)| file.fault(line, format!("a pure room must do without {what}"))).collect()
}

fn impure_word(token: &Token<'_>) -> Option<&'static str> {
    IMPURE_WORDS.iter().find(|(word, _)| *word == token.text).map(|(_, what)| *what)
}

fn impure_path(path: &Path<'_>) -> Option<&'static str> {
    let fits = |pattern: &[&str]| match pattern {
        ["*", last] => path.names.last() == Some(last),
        _ => path.names.starts_with(pattern),
    };
    IMPURE_PATHS.iter().find(|(pattern, _)| fits(pattern)).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::super::catches;
    use super::*;

    #[test]
    fn an_arrow_the_wrong_way_is_caught() {
        catches(arrows, "src/scheduler/lanes.rs", "use crate::id::X;\nuse crate::engine::Y;", &[2]);
        catches(arrows, "src/kafka/mod.rs", "use crate::{contract::A,\n local::B,\n id};", &[2]);
        catches(arrows, "src/contract/run.rs", "fn f() { crate::engine::go() }", &[1]);
        catches(arrows, "src/id/mod.rs", "use super::contract::Run;", &[1]);
        catches(arrows, "src/hooks/exec.rs", "use super::wire;\nuse super::super::engine::E;", &[2]);
        catches(
            arrows,
            "src/hooks/exec.rs",
            "mod tests {\n use super::super::wire;\n use super::super::super::engine;\n}",
            &[3],
        );
        catches(arrows, "src/engine/mod.rs", "use crate::Run; // by its room's name, please", &[1]);
        catches(arrows, "src/main.rs", "fn main() { evenkeel::service::run() }\nuse evenkeel::engine::Engine;", &[2]);
        catches(arrows, "src/attic/mod.rs", "", &[1]);
        catches(arrows, "src/lib.rs", "use crate::engine::Engine;", &[]);
    }

    #[test]
    fn only_wiring_knows_the_edges() {
        catches(arrows, "src/service/admin/mod.rs", "use crate::engine::Handle;\nuse crate::kafka::Stream;", &[2]);
        catches(arrows, "src/service/wiring/streams.rs", "use crate::kafka::Stream;", &[]);
    }

    #[test]
    fn a_library_in_another_room_is_caught() {
        catches(foreign, "src/engine/run.rs", "use tokio::task;\nuse rdkafka::message::Message;", &[2]);
        catches(foreign, "src/kafka/stream.rs", "use rdkafka::message::Message;", &[]);
    }

    #[test]
    fn a_clock_or_a_wait_in_a_pure_room_is_caught() {
        let ledger = "src/kafka/ledger.rs";
        for impure in [
            "use std::time::{Duration,\n Instant};",
            "\nasync fn f() {}",
            "\nuse std::{fmt, fs};",
            "\nfn f() -> std::io::Result<()> {}",
            "\nlet t = jiff::Timestamp::now();",
            "\ntracing::info!(\"settled\");",
            "\nuse std::collections::{BTreeMap, HashMap};",
            "\nuse foldhash::fast::RandomState;",
        ] {
            catches(pure, ledger, impure, &[2]);
        }
        catches(
            pure,
            "src/scheduler/mod.rs",
            "#[cfg(test)]\nmod tests { use std::time::Instant; }\nuse std::env;",
            &[3],
        );
        catches(
            pure,
            "src/scheduler/lanes.rs",
            "//! No Instant here.\nfn f(now: Duration) { \"async\"; self.now() }",
            &[],
        );
        catches(pure, "src/kafka/stream.rs", "use std::time::Instant;", &[]);
    }
}
