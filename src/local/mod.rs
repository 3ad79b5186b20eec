//! Everything that needs no service: stores, resync, channels, leadership of one process.
