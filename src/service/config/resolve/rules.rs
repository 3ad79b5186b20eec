//! The rules between keys: what each alone may say, and both together may not.
//!
//! Tested by `tests/it/config.rs`, a file for each rule.

use std::collections::BTreeMap;

use super::super::context::Context;
use super::super::form::show_duration;
use super::super::resolved::{Config, GiveUp, StreamSource};

/// Reports every rule that is broken.
pub(super) fn check(cx: &Context<'_>, config: &Config) {
    durations(cx, config);
    streams(cx, config);
    topics(cx, config);
    give_up(cx, config);
    admin(cx, config);
}

fn durations(cx: &Context<'_>, config: &Config) {
    let (retry, timing) = (&config.reconciler.options.retry, &config.timing);
    for (short, short_path, long, long_path, why) in [
        (
            retry.initial,
            "reconciler.retry.initial",
            retry.max_delay,
            "reconciler.retry.max_delay",
            "delays grow from the one to the other",
        ),
        (
            timing.resolution,
            "timing.resolution",
            timing.min_requeue,
            "timing.min_requeue",
            "times are rounded up to the resolution",
        ),
        (
            config.reconciler.options.cancel_grace,
            "reconciler.cancel_grace",
            config.timing.drain,
            "drain_timeout",
            "a run that is cancelled at the stop has that long to end",
        ),
    ] {
        if long < short {
            let (long, short) = (show_duration(long), show_duration(short));
            // Where only one of them is written, that one is the fault.
            if cx.is_written(long_path) {
                cx.fault(long_path, format!("{long} is shorter than {short_path} ({short}): {why}"));
            } else {
                cx.fault(short_path, format!("{short} is longer than {long_path} ({long}): {why}"));
            }
        }
    }
}

fn streams(cx: &Context<'_>, config: &Config) {
    let mut http: Option<&str> = None;
    for stream in &config.streams {
        match &stream.source {
            StreamSource::Kafka(_) if config.kafka.is_none() => {
                let path = format!("streams.{}.kafka", stream.name);
                cx.fault(&path, "needs the block kafka, with the brokers of the cluster");
            }
            StreamSource::Http => {
                let path = format!("streams.{}.http", stream.name);
                if config.admin.is_none() {
                    cx.fault(&path, "needs the admin server, and admin.listen is none");
                }
                if let Some(first) = http.replace(&stream.name) {
                    cx.fault(&path, format!("is the second stream of this kind, after {first}; one takes all ids"));
                }
            }
            _ => {}
        }
    }
}

/// Two streams that read one topic would commit the same offsets, each for its own work.
fn topics(cx: &Context<'_>, config: &Config) {
    let mut readers: BTreeMap<&str, &str> = BTreeMap::new();
    let kafka = || {
        config.streams.iter().filter_map(|stream| match &stream.source {
            StreamSource::Kafka(kafka) => Some((stream.name.as_str(), kafka)),
            _ => None,
        })
    };
    for (name, stream) in kafka() {
        for topic in &stream.topics {
            if let Some(first) = readers.insert(topic, name) {
                let message = format!("the topic {topic} is listed twice, first by the stream {first}; keep one");
                cx.fault(&format!("streams.{name}.kafka.topics"), message);
            }
        }
    }
    for (name, stream) in kafka() {
        let Some(hand_off) = &stream.hand_off else { continue };
        // Read by this stream as well, so it belongs to it alone.
        if let Some(first) = readers.insert(hand_off, name) {
            let message = format!("the stream {first} reads {hand_off} already; a hand-off topic serves one stream");
            cx.fault(&format!("streams.{name}.kafka.hand_off"), message);
        }
    }
    for (name, stream) in kafka() {
        let Some(dead_letter) = &stream.dead_letter else { continue };
        if let Some(reader) = readers.get(dead_letter.as_str()) {
            let message = format!("the stream {reader} reads {dead_letter}: what is given up would come back at once");
            cx.fault(&format!("streams.{name}.kafka.dead_letter"), message);
        }
    }
}

/// D3: what is given up counts as done only once it is kept somewhere.
fn give_up(cx: &Context<'_>, config: &Config) {
    let has_dead_letter = config.streams.iter().any(|stream| match &stream.source {
        StreamSource::Kafka(kafka) => kafka.dead_letter.is_some(),
        _ => false,
    });
    let has_store = config.data_dir.is_some() || config.etcd.is_some();
    if config.give_up == GiveUp::Keep && !has_store && !has_dead_letter {
        let path = if cx.is_written("give_up") { "give_up" } else { "data_dir" };
        let message = "with data_dir: none and no dead_letter nothing keeps an id that is given up; \
                       say give_up: forget, or set one of them";
        cx.fault(path, message);
    }
}

fn admin(cx: &Context<'_>, config: &Config) {
    let Some(admin) = &config.admin else { return };
    if !admin.listen.ip().is_loopback() && admin.token_file.is_none() {
        let message = format!("{} can be reached from outside, so it needs admin.token_file", admin.listen);
        cx.fault("admin.listen", message);
    }
}
