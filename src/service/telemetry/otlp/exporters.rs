//! The exporters of one signal, by gRPC or HTTP.
//!
//! There are two of each: a patient one, which tries a batch again until its time is over, and one that tries once, for
//! the end of the process. Must never read a variable of the environment that the config has not read: what is set here
//! wins over what the exporters would find by themselves.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use opentelemetry_http::HttpClient;
use opentelemetry_otlp::{
    Compression, LogExporter, MetricExporter, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use opentelemetry_sdk::metrics::Temporality;
use reqwest::header::HeaderMap;
use tonic::metadata::MetadataMap;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use super::http::{self, Client};
use super::lost::Lost;
use crate::service::config::{OtlpProtocol, OtlpSignal, Signal};

/// The longest pause between two tries of a batch.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Makes the exporters of one signal.
pub(super) struct Exporters {
    signal: OtlpSignal,
    way: Way,
}

/// One connection, which both exporters share.
enum Way {
    Grpc(Channel, HeaderMap),
    Http(Arc<dyn HttpClient>),
}

impl Exporters {
    /// Connects when there is something to send. Within a runtime only.
    pub(super) fn new(signal: &OtlpSignal, which: Signal, lost: &Arc<Lost>) -> anyhow::Result<Self> {
        let way = match signal.protocol {
            OtlpProtocol::Grpc => Way::Grpc(channel(signal)?, http::headers(signal)?),
            OtlpProtocol::Http => Way::Http(Arc::new(Client::new(signal, which, lost)?)),
        };
        Ok(Self { signal: signal.clone(), way })
    }

    /// For spans.
    pub(super) fn spans(&self, patient: bool) -> anyhow::Result<SpanExporter> {
        Ok(match &self.way {
            Way::Grpc(channel, headers) => {
                self.grpc(SpanExporter::builder().with_tonic(), patient, channel, headers).build()?
            }
            Way::Http(client) => self.http(SpanExporter::builder().with_http(), patient, client).build()?,
        })
    }

    /// For log records.
    pub(super) fn logs(&self, patient: bool) -> anyhow::Result<LogExporter> {
        Ok(match &self.way {
            Way::Grpc(channel, headers) => {
                self.grpc(LogExporter::builder().with_tonic(), patient, channel, headers).build()?
            }
            Way::Http(client) => self.http(LogExporter::builder().with_http(), patient, client).build()?,
        })
    }

    /// For metrics, as sums since the start: the page of Prometheus reads the same ones.
    pub(super) fn metrics(&self, patient: bool) -> anyhow::Result<MetricExporter> {
        let builder = MetricExporter::builder().with_temporality(Temporality::Cumulative);
        Ok(match &self.way {
            Way::Grpc(channel, headers) => self.grpc(builder.with_tonic(), patient, channel, headers).build()?,
            Way::Http(client) => self.http(builder.with_http(), patient, client).build()?,
        })
    }

    fn grpc<B>(&self, builder: B, patient: bool, channel: &Channel, headers: &HeaderMap) -> B
    where
        B: WithExportConfig + WithTonicConfig,
    {
        let metadata = MetadataMap::from_headers(headers.clone());
        let builder = builder
            .with_endpoint(&self.signal.url)
            .with_timeout(self.signal.timeout)
            .with_channel(channel.clone())
            // After what the exporter puts there by itself.
            .with_interceptor(move |mut request: tonic::Request<()>| {
                let mut all = std::mem::take(request.metadata_mut()).into_headers();
                all.extend(metadata.clone().into_headers());
                *request.metadata_mut() = MetadataMap::from_headers(all);
                Ok(request)
            })
            .with_retry_policy(retry(patient));
        if self.signal.gzip { builder.with_compression(Compression::Gzip) } else { builder }
    }

    fn http<B>(&self, builder: B, patient: bool, client: &Arc<dyn HttpClient>) -> B
    where
        B: WithExportConfig + WithHttpConfig,
    {
        let builder = builder
            .with_endpoint(&self.signal.url)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(self.signal.timeout)
            .with_shared_http_client(Arc::clone(client))
            .with_retry_policy(retry(patient));
        if self.signal.gzip { builder.with_compression(Compression::Gzip) } else { builder }
    }
}

/// The timeout bounds all tries together; what the collector refuses for good is not tried again.
fn retry(patient: bool) -> RetryPolicy {
    if patient {
        RetryPolicy::recommended().with_max_retries(usize::MAX).with_max_delay(PAUSE_MAX)
    } else {
        RetryPolicy::disabled()
    }
}

fn channel(signal: &OtlpSignal) -> anyhow::Result<Channel> {
    let mut endpoint = Endpoint::from_shared(signal.url.clone())?
        .timeout(signal.timeout)
        .connect_timeout(http::CONNECT_TIMEOUT.min(signal.timeout))
        .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))?;
    if signal.url.starts_with("https:") {
        let tls = match &signal.ca_file {
            Some(file) => {
                let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem))
            }
            None => ClientTlsConfig::new().with_native_roots(),
        };
        endpoint = endpoint.tls_config(tls)?;
    }
    Ok(endpoint.connect_lazy())
}
