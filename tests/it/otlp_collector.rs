//! A collector over HTTP that does what a test tells it: takes, refuses, or never answers. What it took is decoded.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// What it does with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mode {
    Take,
    /// Answers with this status, and repeats the headers of the request in its body.
    Refuse(u16),
    /// Never answers.
    Silent,
}

#[derive(Default)]
struct Taken {
    requests: Vec<(String, HeaderMap)>,
    spans: Vec<Span>,
    metrics: Vec<Metric>,
    logs: Vec<LogRecord>,
    resources: Vec<Resource>,
}

/// A collector that listens.
pub(crate) struct Collector {
    taken: Arc<Mutex<Taken>>,
    mode: Arc<Mutex<Mode>>,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Collector {
    pub(crate) fn start(mode: Mode) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self::on(listener, mode)
    }

    /// At an address that somebody keeps free.
    pub(crate) fn on(listener: std::net::TcpListener, mode: Mode) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (taken, mode): (Arc<Mutex<Taken>>, _) = (Arc::default(), Arc::new(Mutex::new(mode)));
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (into, told) = (Arc::clone(&taken), Arc::clone(&mode));
        let take = move |Path(signal): Path<String>, headers: HeaderMap, body: axum::body::Bytes| {
            let mode = *lock(&told);
            let into = Arc::clone(&into);
            async move { answer(&into, mode, &signal, headers, &body).await }
        };
        let app = axum::Router::new().route("/v1/{signal}", axum::routing::post(take));
        runtime.spawn(async move { axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), app).await });
        Self { taken, mode, address, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn set(&self, mode: Mode) {
        *lock(&self.mode) = mode;
    }

    /// How many requests came, of every signal or of one.
    pub(crate) fn requests(&self, signal: &str) -> usize {
        lock(&self.taken).requests.iter().filter(|(name, _)| signal.is_empty() || name == signal).count()
    }

    pub(crate) fn headers(&self) -> Vec<HeaderMap> {
        lock(&self.taken).requests.iter().map(|(_, headers)| headers.clone()).collect()
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        lock(&self.taken).spans.clone()
    }

    pub(crate) fn logs(&self) -> Vec<LogRecord> {
        lock(&self.taken).logs.clone()
    }

    /// The names of metrics that came.
    pub(crate) fn metric_names(&self) -> std::collections::BTreeSet<String> {
        lock(&self.taken).metrics.iter().map(|metric| metric.name.clone()).collect()
    }

    pub(crate) fn resources(&self) -> Vec<Resource> {
        lock(&self.taken).resources.clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn answer(taken: &Mutex<Taken>, mode: Mode, signal: &str, headers: HeaderMap, body: &[u8]) -> Response {
    let echo = format!("{headers:?}");
    lock(taken).requests.push((signal.to_owned(), headers));
    match mode {
        Mode::Silent => std::future::pending().await,
        Mode::Refuse(status) => (StatusCode::from_u16(status).unwrap(), echo).into_response(),
        Mode::Take => {
            take(&mut lock(taken), signal, body);
            StatusCode::OK.into_response()
        }
    }
}

fn take(taken: &mut Taken, signal: &str, body: &[u8]) {
    match signal {
        "traces" => {
            for of in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
                taken.resources.extend(of.resource);
                taken.spans.extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        "metrics" => {
            for of in ExportMetricsServiceRequest::decode(body).unwrap().resource_metrics {
                taken.resources.extend(of.resource);
                taken.metrics.extend(of.scope_metrics.into_iter().flat_map(|scope| scope.metrics));
            }
        }
        "logs" => {
            for of in ExportLogsServiceRequest::decode(body).unwrap().resource_logs {
                taken.resources.extend(of.resource);
                taken.logs.extend(of.scope_logs.into_iter().flat_map(|scope| scope.log_records));
            }
        }
        other => panic!("a request for {other}"),
    }
}

/// The text of an attribute; empty where it is missing.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    found.and_then(|attribute| attribute.value.as_ref()).map(text).unwrap_or_default()
}

pub(crate) fn text(value: &AnyValue) -> String {
    match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(is)) => is.to_string(),
        other => format!("{other:?}"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
