//! Who leads which shard, decided: leases and their deadlines, terms, and when a successor may start (L1, L3, L9).
//!
//! Must never read a clock, wait, or know how etcd is spoken to: time and answers come in, commands go out. Two
//! processes never act for one shard at a time while clocks keep their rate; `tests` tries that over thousands of
//! seeds, against etcd's faults as they were measured.

mod beats;
mod lease;
mod member;
mod moment;
mod seat;
#[cfg(test)]
mod tests;
pub mod timing;

pub use lease::{Beat, Keepalive, LeaseId};
pub use member::{Change, Command, Given, List, Member, Taken, Why};
pub use moment::Moment;
pub use seat::{Holder, Note};
