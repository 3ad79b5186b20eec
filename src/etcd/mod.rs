//! etcd: leadership, and the store of owed records (D12).
//!
//! Must never know the engine, nor another adapter. [`Etcd`] makes calls, with our own timeouts and our own choice
//! among the members; [`Keys`] says what stands where; [`EtcdStore`] is the store. Tested by unit tests in each file
//! and against real members in `tests/live/etcd/`.

mod cluster;
mod connect;
mod elector;
mod error;
mod keys;
mod settings;
mod store;

pub use cluster::{agree, compare};
pub use connect::{Etcd, Member, Repeat};
pub use elector::{ElectorSettings, EtcdElector};
pub use error::EtcdError;
pub use keys::Keys;
pub use settings::{Connection, REQUEST_MAX, Tls, User};
pub use store::EtcdStore;
