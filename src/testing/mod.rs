//! The kit for users who test their reconcilers.
