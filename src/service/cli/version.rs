//! What `--version` says: the version, the features, and the libraries whose build decides what works (B85).

use std::sync::LazyLock;

use crate::service::wiring;

/// The features that were compiled in.
const FEATURES: [(&str, bool); 5] = [
    ("kafka", cfg!(feature = "kafka")),
    ("file-store", cfg!(feature = "file-store")),
    ("hooks", cfg!(feature = "hooks")),
    ("cli", cfg!(feature = "cli")),
    ("vendored-tls", cfg!(feature = "vendored-tls")),
];

/// The version with everything that a report of a fault should name.
pub(super) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let features = FEATURES.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        format!(
            "{}\nfeatures: {features}\nkafka: {}\nfor: {arch} {os}",
            env!("CARGO_PKG_VERSION"),
            wiring::kafka_library()
        )
    });
    &TEXT
}
