//! `telemetry.otlp`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::block::Block;
use super::super::bounds::otlp as keys;
use super::super::context::{Read, Reported};
use super::super::form::{HttpUrl, Opaque, Text, any};
use super::super::key::Key;
use super::super::resolved::{Otlp, OtlpProtocol, OtlpSignal, Signal};
use super::super::secret::Secret;
use super::super::standard;
use super::files;

/// What holds for all signals, unless one has its own.
struct General {
    endpoint: Option<String>,
    protocol: OtlpProtocol,
    headers: BTreeMap<String, Secret>,
    timeout: Duration,
    gzip: bool,
    ca_file: Option<std::path::PathBuf>,
    queue: usize,
    batch: usize,
    delay: Duration,
}

/// Resolves the block; `None` where `OTEL_SDK_DISABLED` switches it off.
pub(super) fn otlp(block: Block<'_>) -> Read<Option<Otlp>> {
    let signals = block.list(&keys::SIGNALS);
    let general = general(&block);
    let sampling = block.get(&keys::SAMPLING);
    let interval = block.get(&keys::INTERVAL);
    let resource = block.pairs(&keys::RESOURCE, &Text { check: any, allowed: "a text" });
    let own = [&keys::TRACES, &keys::METRICS, &keys::LOGS].map(|key| block.block(key));
    let [traces, metrics, logs] = own;
    let traces = traces.and_then(|own| signal(own, Signal::Traces, general.as_ref().ok()));
    let metrics = metrics.and_then(|own| signal(own, Signal::Metrics, general.as_ref().ok()));
    let logs = logs.and_then(|own| signal(own, Signal::Logs, general.as_ref().ok()));
    let (signals, sampling, resource) = (signals?, sampling?, resource?);
    let is_sent = |signal: Signal| signals.is_empty() || signals.contains(&signal);
    let (traces, metrics, logs) = (traces?, metrics?, logs?);
    let cx = block.cx;
    block.close();
    if standard::is_disabled(cx.variables) {
        cx.warn("telemetry.otlp", format!("{} is true, so nothing is sent", standard::DISABLED));
        return Ok(None);
    }
    Ok(Some(Otlp {
        traces: Some(traces).filter(|_| is_sent(Signal::Traces) && sampling > 0.0),
        metrics: Some(metrics).filter(|_| is_sent(Signal::Metrics)),
        logs: Some(logs).filter(|_| is_sent(Signal::Logs)),
        sampling,
        interval: interval?,
        resource,
    }))
}

fn general(block: &Block<'_>) -> Read<General> {
    let endpoint = block.maybe(&keys::ENDPOINT);
    let protocol = block.get(&keys::PROTOCOL);
    let headers = headers(block);
    let timeout = block.get(&keys::TIMEOUT);
    let gzip = block.get(&keys::COMPRESSION);
    let ca_file = files::pem(block, &keys::CA_FILE, "CERTIFICATE");
    let queue = block.get(&keys::QUEUE);
    let batch = block.get(&keys::BATCH);
    let delay = block.get(&keys::DELAY);
    let (endpoint, protocol) = (endpoint?, protocol?);
    if let Some(endpoint) = &endpoint {
        check(block, &keys::ENDPOINT, endpoint, protocol)?;
    }
    Ok(General {
        endpoint,
        protocol,
        headers: headers?,
        timeout: timeout?,
        gzip: gzip?,
        ca_file: ca_file?,
        queue: queue?.get() as usize,
        batch: batch?.get() as usize,
        delay: delay?,
    })
}

/// How one signal goes. Its own keys are read whether the general ones make sense or not: one fault hides no other.
fn signal(block: Block<'_>, signal: Signal, general: Option<&General>) -> Read<OtlpSignal> {
    let endpoint = block.maybe(&keys::OWN_ENDPOINT);
    let protocol = block.maybe(&keys::OWN_PROTOCOL);
    let headers = headers(&block);
    let timeout = block.maybe(&keys::OWN_TIMEOUT);
    let gzip = block.maybe(&keys::OWN_COMPRESSION);
    let ca_file = files::pem(&block, &keys::CA_FILE, "CERTIFICATE");
    let (mut queue, mut batch, mut delay) = (Ok(None), Ok(None), Ok(None));
    if signal != Signal::Metrics {
        queue = block.maybe(&keys::OWN_QUEUE);
        batch = block.maybe(&keys::OWN_BATCH);
        delay = block.maybe(&keys::OWN_DELAY);
    }
    let (endpoint, protocol, headers) = (endpoint?, protocol?, headers?);
    let protocol = protocol.or(general.map(|general| general.protocol)).unwrap_or(OtlpProtocol::Grpc);
    if let Some(endpoint) = &endpoint {
        check(&block, &keys::OWN_ENDPOINT, endpoint, protocol)?;
    }
    let (timeout, gzip, ca_file) = (timeout?, gzip?, ca_file?);
    let (queue, batch, delay) = (queue?, batch?, delay?);
    block.close();
    let general = general.ok_or(Reported)?;
    let queue = queue.map_or(general.queue, |n| n.get() as usize);
    let batch = batch.map_or(general.batch, |n| n.get() as usize);
    Ok(OtlpSignal {
        url: endpoint.unwrap_or_else(|| url(signal, general, protocol)),
        protocol,
        headers: if headers.is_empty() { general.headers.clone() } else { headers },
        timeout: timeout.unwrap_or(general.timeout),
        gzip: gzip.unwrap_or(general.gzip),
        ca_file: ca_file.or_else(|| general.ca_file.clone()),
        queue,
        batch: batch.min(queue),
        delay: delay.unwrap_or(general.delay),
    })
}

/// The whole address, from the one for all signals (B79): to that, HTTP adds a path.
fn url(signal: Signal, general: &General, protocol: OtlpProtocol) -> String {
    let base = |default: &str| general.endpoint.clone().unwrap_or_else(|| default.to_owned());
    match protocol {
        OtlpProtocol::Grpc => base("http://localhost:4317"),
        OtlpProtocol::Http => {
            format!("{}/v1/{}", base("http://localhost:4318").trim_end_matches('/'), signal.name())
        }
    }
}

/// What is wrong between an address and what is spoken there, or probably is.
fn check(block: &Block<'_>, key: &Key<HttpUrl>, endpoint: &str, protocol: OtlpProtocol) -> Read<()> {
    let Ok(url) = reqwest::Url::parse(endpoint) else { return Err(block.fault(key, "is not a URL")) };
    let (port, says) = match protocol {
        OtlpProtocol::Grpc if !matches!(url.path(), "" | "/") || url.query().is_some() => {
            let says = "has a path, and grpc has none; leave it out, or use protocol: http/protobuf";
            return Err(block.fault(key, says));
        }
        OtlpProtocol::Grpc => (4318, "grpc usually has port 4317, and http/protobuf this one"),
        OtlpProtocol::Http => (4317, "http/protobuf usually has port 4318, and grpc this one"),
    };
    if url.port() == Some(port) {
        block.cx.warn(&block.path_of(key.name), format!("port {port} with the wrong protocol? {says}"));
    }
    Ok(())
}

/// Headers that make a request; what they say is not shown.
fn headers(block: &Block<'_>) -> Read<BTreeMap<String, Secret>> {
    let headers = block.pairs(&keys::HEADERS, &Opaque)?;
    for (name, value) in &headers {
        let path = super::super::expand::join(&block.path_of(keys::HEADERS.name), name);
        if name.parse::<reqwest::header::HeaderName>().is_err() {
            return Err(block.cx.fault(&path, "is no name of a header"));
        }
        if reqwest::header::HeaderValue::from_str(value.expose()).is_err() {
            return Err(block.cx.fault(&path, "has a value that no header may have"));
        }
    }
    Ok(headers)
}
