//! Leadership and records against a real etcd.

mod elector;
mod members;
mod process;
