//! Where each key of a config stands, so that what is found wrong later still has a line.
//!
//! Must never hold a value. Tested by the table of bad configs in `tests/it/config.rs`.

use std::collections::BTreeMap;

use super::expand::join;
use super::fault::Place;
use super::tree::{Node, Value};

/// The places of all keys that are written.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(BTreeMap<String, Place>);

impl Places {
    pub(super) fn of(root: &Node) -> Self {
        let mut places = Self::default();
        places.collect(root, "");
        places
    }

    /// Whether the file, or a variable, says something there.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// The place of a key, or of the nearest block around it.
    pub(super) fn find(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            match (self.0.get(path), path.rfind(['.', '['])) {
                (Some(place), _) => return place.clone(),
                (None, Some(end)) => path = &path[..end],
                (None, None) => return Place::START,
            }
        }
    }

    /// A block is found where its key stands, a value where it stands itself.
    fn collect(&mut self, node: &Node, path: &str) {
        match &node.value {
            Value::Map(entries) => {
                for entry in entries {
                    let path = join(path, &entry.key);
                    let is_block = matches!(entry.node.value, Value::Map(_) | Value::List(_) | Value::Null);
                    let place = if is_block { &entry.place } else { &entry.node.place };
                    self.0.entry(path.clone()).or_insert_with(|| place.clone());
                    self.collect(&entry.node, &path);
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.0.insert(format!("{path}[{i}]"), item.place.clone());
                }
            }
            Value::Text(_) | Value::Null | Value::Faulty => {}
        }
    }
}
