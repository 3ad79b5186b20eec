//! Reconcilers in any language: HTTP webhooks and commands, one JSON contract for both.
