//! `reconciler`, and the webhooks and commands that lists use too.

use std::num::NonZeroU32;

use super::super::block::Block;
use super::super::bounds::reconciler as keys;
use super::super::context::Read;
use super::super::expand::join;
use super::super::form;
use super::super::key::Key;
use super::super::resolved::{Exec, Http, Reconciler, Target};
use super::super::tree::Value;
use super::files;
use crate::engine::ReconcilerOptions;

/// Runs in flight where nothing is said: requests mostly wait.
const CONCURRENCY_WEBHOOK: u32 = 64;

pub(super) fn reconciler(block: Block<'_>) -> Read<Reconciler> {
    let webhook = webhook(&block);
    let exec = exec(&block, &keys::EXEC);
    let workers = block.get(&keys::WORKERS);
    let concurrency = block.maybe(&keys::CONCURRENCY);
    let timeout = block.get(&keys::TIMEOUT);
    let cancel_grace = block.get(&keys::CANCEL_GRACE);
    let mut options = ReconcilerOptions::default();
    let retry = block.block(&keys::RETRY).and_then(|block| retry(block, &mut options));
    let target = match (webhook, exec) {
        (Ok(Some(webhook)), Ok(None)) => Ok(Target::Webhook(webhook)),
        (Ok(None), Ok(Some(exec))) => Ok(Target::Exec(exec)),
        (Ok(None), Ok(None)) => {
            Err(block.cx.fault(&block.path, "needs one of webhook and exec: what is called for an id"))
        }
        (Ok(Some(_)), Ok(Some(_))) => Err(block.fault(&keys::EXEC, "stands beside webhook; keep one of them")),
        (Err(reported), _) | (_, Err(reported)) => Err(reported),
    };
    block.close();
    let target = target?;
    let default = if matches!(target, Target::Exec(_)) { cpus() } else { CONCURRENCY_WEBHOOK };
    retry?;
    options.workers = u16::try_from(workers?.get()).unwrap_or(u16::MAX);
    options.concurrency = concurrency?.map_or(default, NonZeroU32::get);
    options.timeout = timeout?;
    options.cancel_grace = cancel_grace?;
    Ok(Reconciler { target, options })
}

/// The CPUs that this process may use: more commands at once would only wait for each other.
fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1))
}

fn retry(block: Block<'_>, options: &mut ReconcilerOptions) -> Read<()> {
    let initial = block.get(&keys::INITIAL);
    let factor = block.get(&keys::FACTOR);
    let max_delay = block.get(&keys::MAX_DELAY);
    let jitter = block.get(&keys::JITTER);
    let max_retries = block.get(&keys::MAX_RETRIES);
    block.close();
    let retry = &mut options.retry;
    (retry.initial, retry.factor, retry.max_delay, retry.jitter) = (initial?, factor?, max_delay?, jitter?);
    retry.max_retries = max_retries?.map(NonZeroU32::get);
    Ok(())
}

fn webhook(block: &Block<'_>) -> Read<Option<Http>> {
    let Some(node) = block.node(&keys::WEBHOOK)? else { return Ok(None) };
    let path = block.path_of(keys::WEBHOOK.name);
    if matches!(node.value, Value::Text(_)) {
        return Ok(Some(Http { url: block.cx.parse(&keys::URL.form, node, &path)?, ..Http::default() }));
    }
    let block = Block::open(block.cx, node, &path, keys::WEBHOOK.form.section)?;
    let url = block.get(&keys::URL);
    let secret_file = files::secret_file(&block, &keys::SECRET_FILE);
    let authorization_file = files::secret_file(&block, &keys::AUTHORIZATION_FILE);
    let ca_file = files::pem(&block, &keys::CA_FILE, "CERTIFICATE");
    block.close();
    Ok(Some(Http { url: url?, secret_file: secret_file?, authorization_file: authorization_file?, ca_file: ca_file? }))
}

/// A command in its short or long form.
pub(super) fn exec(block: &Block<'_>, key: &Key<form::Block>) -> Read<Option<Exec>> {
    let Some(node) = block.node(key)? else { return Ok(None) };
    let (cx, path) = (block.cx, block.path_of(key.name));
    if !matches!(node.value, Value::Map(_)) {
        let argv = cx.items(&keys::COMMAND.form.form, node, &path)?;
        check_program(block, &path, &argv)?;
        return Ok(Some(Exec { argv, env: Vec::new() }));
    }
    let block = Block::open(cx, node, &path, key.form.section)?;
    let argv = block.list(&keys::COMMAND).and_then(|argv| {
        check_program(&block, &join(&path, keys::COMMAND.name), &argv)?;
        Ok(argv)
    });
    let env = block.list(&keys::ENV);
    block.close();
    Ok(Some(Exec { argv: argv?, env: env? }))
}

fn check_program(block: &Block<'_>, path: &str, argv: &[String]) -> Read<()> {
    match argv.first() {
        Some(program) => files::find_program(block.cx, program, path),
        None => {
            Err(block.cx.fault(path, "is an empty list; allowed: a program, or a list of a program and its arguments"))
        }
    }
}
