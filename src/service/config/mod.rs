//! The config: found, read, overridden from the environment, resolved into typed values, and explained.
//!
//! The way of a value: file, `tree` (raw: texts with places), `overlay` (environment), `expand` (`${NAME}`), `standard`
//! (OTEL_… variables where nothing is written), `resolve` (typed, by the table in `bounds`). All faults come at once,
//! each with its place (I2). Must never name an adapter: wiring turns [`Config`] into engine, streams and reconcilers.
//! Tested in `tests/it/config.rs`.

mod block;
mod bounds;
mod context;
mod expand;
mod fault;
mod form;
mod key;
mod overlay;
mod places;
mod reference;
mod resolve;
mod resolved;
mod secret;
mod standard;
mod syntax;
mod tree;
mod variables;

use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use fault::{ConfigError, Fault, Place};
pub use reference::{example, markdown, reference};
pub use resolved::{
    Admin, ClientCertificate, Config, Etcd, EtcdUser, Exec, GiveUp, Http, IdFrom, Kafka, KafkaStream, List, Logs,
    Mechanism, Otlp, OtlpProtocol, OtlpSignal, Reconciler, Resync, Sasl, Signal, Stream, StreamSource, Target,
    Telemetry, Tls,
};
pub use secret::Secret;
pub use variables::Variables;

/// Names the config file, where `--config` does not.
pub const CONFIG_VARIABLE: &str = "EVENKEEL_CONFIG";

/// Where the config is looked for, in this order, where nobody names it.
pub const CONFIG_PLACES: [&str; 2] = ["./evenkeel.yaml", "/etc/evenkeel/evenkeel.yaml"];

/// The largest config file: a thousand streams have a tenth of it.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// A config that can be used.
#[derive(Debug)]
pub struct Loaded {
    /// The config.
    pub config: Config,
    /// Its file, as messages show it.
    pub file: String,
    /// What works and should yet be known, in the order of the file.
    pub warnings: Vec<Fault>,
    places: places::Places,
}

impl Loaded {
    /// What an adapter found wrong with a key, with the place of the key.
    #[must_use]
    pub fn fault(&self, path: &str, message: impl Into<String>) -> Fault {
        Fault { place: self.places.find(path), path: path.to_owned(), message: message.into() }
    }
}

/// Finds and reads the config: `named`, or the first of [`CONFIG_PLACES`] that exists.
///
/// # Errors
/// There is no file, it cannot be read, or something in it is wrong; then everything that is wrong.
pub fn load(named: Option<&Path>, variables: &Variables) -> Result<Loaded, ConfigError> {
    let file = match named {
        Some(file) => file.to_owned(),
        None => find()?,
    };
    let bytes = read(&file)?;
    let shown = file.display().to_string();
    parse(&bytes, file, variables).map_err(|faults| ConfigError::Faults { file: shown, faults })
}

fn find() -> Result<PathBuf, ConfigError> {
    let places = CONFIG_PLACES.map(PathBuf::from);
    match places.iter().find(|place| place.exists()) {
        Some(place) => Ok(place.strip_prefix(".").unwrap_or(place).to_owned()),
        None => Err(ConfigError::NotFound { looked: places.to_vec() }),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable { file: file.to_owned(), reason };
    let io = |e: std::io::Error| unreadable(secret::io_reason(&e));
    let mut bytes = Vec::new();
    std::fs::File::open(file).map_err(io)?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(unreadable(format!("it is larger than {} MiB", CONFIG_BYTES_MAX / 1024 / 1024)));
    }
    Ok(bytes)
}

/// Parses and resolves the bytes of a config file; paths in it are relative to the folder of `file`.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn parse(bytes: &[u8], file: PathBuf, variables: &Variables) -> Result<Loaded, Vec<Fault>> {
    let text = std::str::from_utf8(bytes).map_err(|e| vec![syntax::not_utf8(bytes, e.valid_up_to())])?;
    let mut root = tree::parse(text).map_err(|fault| vec![fault])?;
    if let Some(message) = syntax::not_a_block(&root) {
        return Err(vec![Fault { place: root.place, path: String::new(), message }]);
    }
    let mut faults = overlay::overlay(&mut root, variables);
    faults.extend(expand::expand(&mut root, variables));
    faults.extend(standard::fill_in(&mut root, variables));
    let dir = file.parent().unwrap_or(Path::new(""));
    let cx = context::Context::new(&root, variables, dir, faults);
    let shown = file.display().to_string();
    let (config, found) = resolve::resolve(&root, file, cx)?;
    Ok(Loaded { config, file: shown, warnings: found.warnings, places: found.places })
}
