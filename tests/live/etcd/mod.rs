//! etcd: connecting, and the store of owed records.

mod connect;
mod proxy;
mod store;
