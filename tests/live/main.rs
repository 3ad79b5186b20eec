//! Tests against real services, which `make test` sets up.
