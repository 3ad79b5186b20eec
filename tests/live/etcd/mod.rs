//! etcd: connecting, leadership, and the store of owed records.

mod connect;
mod elector;
mod process;
mod proxy;
mod store;
