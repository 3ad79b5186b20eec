//! One shard, decided: a value without clock, IO or async.
