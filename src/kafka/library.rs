//! Which librdkafka this binary holds, and what it was built with (B85).

use rdkafka::ClientConfig;
use rdkafka::util::get_rdkafka_version;

/// The client library and its built-in features, as in `librdkafka 2.12.1 (gzip, snappy, ssl, sasl_scram)`.
#[must_use]
pub fn library() -> String {
    let (_, version) = get_rdkafka_version();
    let features = ClientConfig::new().create_native_config().and_then(|config| config.get("builtin.features"));
    let features = features.map_or_else(|_| "unknown".to_owned(), |features| features.replace(',', ", "));
    format!("librdkafka {version} ({features})")
}

#[cfg(test)]
mod tests {
    #[test]
    fn b85_tls_and_every_promised_login_are_built_in() {
        let library = super::library();
        for feature in ["ssl", "sasl_plain", "sasl_scram", "sasl_oauthbearer", "gzip", "snappy", "lz4", "zstd"] {
            assert!(library.contains(feature), "{feature} is missing: {library}");
        }
    }
}
