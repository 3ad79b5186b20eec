//! From the raw tree to the config that is ready to use: every key by the table, then the rules between keys.
//!
//! All keys are read before any is missed, so that one fault hides no other. Reads the files that the config names, so
//! that `check` says what a start would say; opens no connection. Tested by `tests/it/config.rs`.

mod etcd;
mod files;
mod kafka;
mod otlp;
mod reconciler;
mod rules;
mod streams;
mod warnings;

use std::path::PathBuf;

use super::block::Block;
use super::bounds::top as keys;
use super::context::{Context, Finished, Read};
use super::fault::Fault;
use super::resolved::{Admin, Config, Telemetry};
use super::tree::Node;
use crate::engine::{Limits, Sharding, Timing};

/// Resolves a tree: a config and what else was found, or everything that is wrong.
pub(super) fn resolve(root: &Node, file: PathBuf, cx: Context<'_>) -> Result<(Config, Finished), Vec<Fault>> {
    let config = config(root, file, &cx);
    if let Ok(config) = &config {
        rules::check(&cx, config);
        warnings::warn(&cx, config);
    }
    let finished = cx.finish();
    match config {
        Ok(config) if finished.faults.is_empty() => Ok((config, finished)),
        _ => Err(finished.faults),
    }
}

fn config(root: &Node, file: PathBuf, cx: &Context<'_>) -> Read<Config> {
    let block = Block::open(cx, root, "", &keys::ROOT)?;
    let name = block.get(&keys::NAME);
    let shards = block.get(&keys::SHARDS);
    let hash = block.get(&keys::HASH);
    let reconciler = block.block(&keys::RECONCILER).and_then(reconciler::reconciler);
    let kinds = block.later(&keys::KINDS);
    let streams = streams::streams(&block);
    let limits = block.block(&keys::LIMITS).and_then(limits);
    let data_dir = files::data_dir(&block);
    let give_up = block.get(&keys::GIVE_UP);
    let drain_timeout = block.get(&keys::DRAIN_TIMEOUT);
    let timing = block.block(&keys::TIMING).and_then(timing);
    let kafka = block.optional_block(&keys::KAFKA).and_then(|block| block.map(kafka::kafka).transpose());
    let etcd = block.optional_block(&keys::ETCD).and_then(|block| block.map(etcd::etcd).transpose());
    let admin = block.block(&keys::ADMIN).and_then(admin);
    let telemetry = block.block(&keys::TELEMETRY).and_then(telemetry);
    block.close();
    kinds?;
    Ok(Config {
        file,
        dir: cx.dir.clone(),
        name: name?,
        sharding: Sharding { shards: shards?.get(), hash: hash? },
        reconciler: reconciler?,
        streams: streams?,
        limits: limits?,
        data_dir: data_dir?,
        give_up: give_up?,
        timing: Timing { drain: drain_timeout?, ..timing? },
        kafka: kafka?,
        etcd: etcd?,
        admin: admin?,
        telemetry: telemetry?,
    })
}

fn limits(block: Block<'_>) -> Read<Limits> {
    let admitted = block.get(&keys::ADMITTED);
    let timers = block.get(&keys::TIMERS);
    // Checked already, used once there are resources.
    let resources = block.get(&keys::RESOURCES);
    let owed_records = block.get(&keys::OWED_RECORDS);
    block.close();
    resources?;
    Ok(Limits { admitted: admitted?.get(), timers: timers?.get(), owed_records: owed_records?.get() })
}

fn timing(block: Block<'_>) -> Read<Timing> {
    let max_hold = block.get(&keys::MAX_HOLD);
    let min_requeue = block.get(&keys::MIN_REQUEUE);
    // Checked already, used once there are resources.
    let cascade_wait = block.get(&keys::CASCADE_WAIT);
    let resolution = block.get(&keys::RESOLUTION);
    block.close();
    cascade_wait?;
    let (max_hold, min_requeue, resolution) = (max_hold?, min_requeue?, resolution?);
    Ok(Timing { max_hold, min_requeue, resolution, ..Timing::default() })
}

fn admin(block: Block<'_>) -> Read<Option<Admin>> {
    let listen = block.get(&keys::LISTEN);
    let token_file = files::secret_file(&block, &keys::TOKEN_FILE);
    block.close();
    let (Some(listen), token_file) = (listen?, token_file?) else { return Ok(None) };
    Ok(Some(Admin { listen, token_file }))
}

fn telemetry(block: Block<'_>) -> Read<Telemetry> {
    let otlp = block.optional_block(&keys::OTLP).and_then(|block| block.map(otlp::otlp).transpose());
    let logs = block.get(&keys::LOGS);
    let level = block.get(&keys::LEVEL);
    block.close();
    Ok(Telemetry { otlp: otlp?.flatten(), logs: logs?, level: level? })
}
