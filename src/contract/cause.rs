//! Causes as people read them (T5): in the trace, the log line, `explain` and what a reconciler is told.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why an id was owed a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "hooks", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// An event of a stream.
    Event {
        /// The stream's name.
        stream: Arc<str>,
        /// Where in Kafka it stood, if it came from there.
        #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
        position: Option<Position>,
    },
    /// A resync listed the id.
    Resync {
        /// The stream's name.
        stream: Arc<str>,
    },
    /// Somebody asked for it.
    Trigger {},
    /// An attempt failed before.
    Retry {
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// Its error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Arc<str>>,
    },
    /// The reconciler asked for this time.
    Requested {},
    /// An owed record of an earlier term.
    Recovered {},
    /// Released from where it was parked.
    Redrive {},
    /// The run before was cancelled.
    Cancelled {},
}

/// A position in Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "hooks", derive(schemars::JsonSchema))]
pub struct Position {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: u64,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event { position: Some(p), .. } => write!(f, "{}/{}@{}", p.topic, p.partition, p.offset),
            Self::Event { stream, position: None } | Self::Resync { stream } => f.write_str(stream),
            Self::Trigger {} => f.write_str("trigger"),
            Self::Retry { attempt, .. } => write!(f, "retry after attempt {attempt}"),
            Self::Requested {} => f.write_str("requested time"),
            Self::Recovered {} => f.write_str("owed record"),
            Self::Redrive {} => f.write_str("redrive"),
            Self::Cancelled {} => f.write_str("cancelled run"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t5_causes_have_the_documented_json() {
        let event = Cause::Event {
            stream: "orders".into(),
            position: Some(Position { topic: "orders".into(), partition: 7, offset: 991 }),
        };
        assert_eq!(
            serde_json::to_string(&event).unwrap(),
            r#"{"event":{"stream":"orders","topic":"orders","partition":7,"offset":991}}"#
        );
        assert_eq!(event.to_string(), "orders/7@991");
        for cause in [
            event,
            Cause::Event { stream: "x".into(), position: None },
            Cause::Retry { attempt: 2, error: Some("no route".into()) },
            Cause::Trigger {},
        ] {
            let json = serde_json::to_string(&cause).unwrap();
            assert_eq!(serde_json::from_str::<Cause>(&json).unwrap(), cause, "{json}");
        }
    }
}
