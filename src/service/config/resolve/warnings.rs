//! What works and should yet be known: `check` and the start say it.
//!
//! Tested by `tests/it/config.rs`, a file for each warning.

use super::super::context::Context;
use super::super::resolved::{Config, Http, List, Mechanism, StreamSource, Target};

/// Notes every warning.
pub(super) fn warn(cx: &Context<'_>, config: &Config) {
    events(cx, config);
    promise(cx, config);
    clear_text(cx, config);
}

fn events(cx: &Context<'_>, config: &Config) {
    if !config.streams.is_empty() {
        return;
    }
    let message = match config.admin {
        Some(_) => "no streams: nothing but `evenkeel trigger` can produce an event",
        None => "no streams, and admin.listen is none: nothing can produce an event",
    };
    cx.warn("streams", message);
}

/// Where the promise that nothing is lost cannot be kept.
fn promise(cx: &Context<'_>, config: &Config) {
    if config.etcd.is_some() && config.data_dir.is_some() && cx.is_written("data_dir") {
        cx.warn("data_dir", "unused with etcd, which keeps the owed records; remove one of the two");
    } else if config.etcd.is_none() && config.data_dir.is_none() {
        let message = "owed records are kept in memory: offsets are held back until their runs succeed, and a crash \
                       forgets requested times and what was given up";
        cx.warn("data_dir", message);
    }
    for stream in &config.streams {
        if let StreamSource::Kafka(kafka) = &stream.source
            && kafka.dead_letter.is_none()
        {
            let message = "no dead_letter: a message without a usable id is logged and passed over";
            cx.warn(&format!("streams.{}.kafka", stream.name), message);
        }
        if let StreamSource::Kafka(kafka) = &stream.source
            && kafka.hand_off.is_none()
            && config.etcd.is_some()
            && config.sharding.shards > 1
        {
            let message = "no hand_off: an event on a partition of a shard that another process leads is held back";
            cx.warn(&format!("streams.{}.kafka", stream.name), message);
        }
    }
}

fn clear_text(cx: &Context<'_>, config: &Config) {
    if let Some(kafka) = &config.kafka
        && let Some(sasl) = &kafka.sasl
        && kafka.tls.is_none()
    {
        let secret = if sasl.mechanism() == Mechanism::OauthBearer { "token" } else { "password" };
        cx.warn("kafka.sasl", format!("{} without tls: the network can learn the {secret}", sasl.mechanism().name()));
    }
    if let Some(etcd) = &config.etcd
        && etcd.user.is_some()
        && let Some(plain) = etcd.endpoints.iter().find(|url| url.starts_with("http://") && !is_local(url))
    {
        cx.warn("etcd.auth", format!("the password goes to {plain} without encryption; use https"));
    }
    if let Target::Webhook(http) = &config.reconciler.target {
        clear_authorization(cx, "reconciler.webhook", http);
    }
    for stream in &config.streams {
        if let StreamSource::Resync(resync) = &stream.source
            && let List::Http(http) = &resync.list
        {
            clear_authorization(cx, &format!("streams.{}.resync.list.http", stream.name), http);
        }
    }
}

fn clear_authorization(cx: &Context<'_>, path: &str, http: &Http) {
    if http.authorization_file.is_some() && http.url.starts_with("http://") && !is_local(&http.url) {
        cx.warn(path, "authorization over http: the network can read it; use https");
    }
}

/// Whether a URL leads to this machine.
fn is_local(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    match url.host_str().map(|host| host.trim_matches(['[', ']'])) {
        Some("localhost") => true,
        Some(host) => host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}
