//! Two whole processes that share a controller, on a real etcd and a real Kafka, with a recorder outside of them: what
//! becomes of events, runs and tokens when a leader or etcd itself goes, comes, or stands still.

mod etcd_faults;
mod hand_over;
mod standing_still;
mod world;
