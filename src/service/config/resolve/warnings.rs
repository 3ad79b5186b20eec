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
    if config.data_dir.is_none() {
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
    let Ok(url) = reqwest::Url::parse(&http.url) else { return };
    let is_local = match url.host_str().map(|host| host.trim_matches(['[', ']'])) {
        Some("localhost") => true,
        Some(host) => host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    };
    if http.authorization_file.is_some() && url.scheme() == "http" && !is_local {
        cx.warn(path, "authorization over http: the network can read it; use https");
    }
}
