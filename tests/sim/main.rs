//! The seeded world: the scheduler against naive models, with faults.
