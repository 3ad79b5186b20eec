//! Reads a block of the raw tree key by key, by the table of keys, and collects what is wrong.
//!
//! A fault in one key never stops the reading of the next. Must never show a secret. Tested by the table of bad configs
//! in `tests/it/config.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::bounds;
use super::context::{Context, Read, Reported, all, text_node};
use super::expand::join;
use super::form::{self, Form, Items, Later, nearest};
use super::key::{Default, Key, Section};
use super::tree::{Entry, Node, Origin, Value};

/// A block of keys that is being read.
pub(super) struct Block<'a> {
    pub cx: &'a Context<'a>,
    pub path: String,
    entries: &'a [Entry],
    section: &'static Section,
    read: RefCell<Vec<&'static str>>,
}

impl<'a> Block<'a> {
    /// Opens a block and reports the keys that it does not know.
    pub(super) fn open(cx: &'a Context<'a>, node: &'a Node, path: &str, section: &'static Section) -> Read<Self> {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Null => &[],
            Value::Faulty => return Err(Reported),
            Value::Text(_) | Value::List(_) => {
                let keys = section.keys.iter().map(|key| key.name()).collect::<Vec<_>>().join(", ");
                return Err(cx.fault(path, format!("must be a block of keys; allowed: {keys}")));
            }
        };
        let block = Self { cx, path: path.to_owned(), entries, section, read: RefCell::default() };
        block.refuse_unknown_keys();
        Ok(block)
    }

    /// A block that is not written: its defaults.
    fn absent(&self, path: String, section: &'static Section) -> Block<'a> {
        Block { cx: self.cx, path, entries: &[], section, read: RefCell::default() }
    }

    fn refuse_unknown_keys(&self) {
        for entry in self.entries {
            if !self.section.keys.iter().any(|key| key.name() == entry.key) {
                let path = join(&self.path, &entry.key);
                self.cx.fault_at(entry.place.clone(), &path, self.unknown(&entry.key));
            }
        }
    }

    fn unknown(&self, key: &str) -> String {
        let names = || self.section.keys.iter().map(|key| key.name());
        let elsewhere = || bounds::path_of(key).filter(|_| !key.is_empty());
        match nearest(key, names()).map(str::to_owned).or_else(elsewhere) {
            Some(word) => format!("unknown key; did you mean {word}?"),
            None if self.section.keys.is_empty() => "unknown key; this block has none".to_owned(),
            None => format!("unknown key; allowed here: {}", names().collect::<Vec<_>>().join(", ")),
        }
    }

    pub(super) fn path_of(&self, name: &str) -> String {
        join(&self.path, name)
    }

    /// Reports what is wrong with a key.
    pub(super) fn fault<F: Form>(&self, key: &Key<F>, message: impl Into<String>) -> Reported {
        self.cx.fault(&self.path_of(key.name), message)
    }

    /// The written value of a key, if there is one.
    pub(super) fn node<F: Form>(&self, key: &Key<F>) -> Read<Option<&'a Node>> {
        self.read.borrow_mut().push(key.name);
        let Some(entry) = self.entries.iter().find(|entry| entry.key == key.name) else { return Ok(None) };
        match entry.node.value {
            Value::Faulty => Err(Reported),
            Value::Null if key.form.block().is_some() => {
                Err(self.fault(key, "has no value; write {} for an empty block, or remove the key"))
            }
            Value::Null => Err(self.fault(key, "has no value; give it one, or remove the key")),
            _ => Ok(Some(&entry.node)),
        }
    }

    /// The value of a key that has a default, or must be written.
    pub(super) fn get<F: Form>(&self, key: &Key<F>) -> Read<F::Value> {
        let path = self.path_of(key.name);
        match (self.node(key)?, key.default) {
            (Some(node), _) => self.cx.parse(&key.form, node, &path),
            (None, Default::Is(text)) => self.cx.parse(&key.form, &text_node(text, Origin::Written), &path),
            (None, Default::Required(_) | Default::Absent { .. }) => Err(self.missing(key)),
        }
    }

    /// The value of a key that may be absent.
    pub(super) fn maybe<F: Form>(&self, key: &Key<F>) -> Read<Option<F::Value>> {
        match self.node(key)? {
            Some(node) => self.cx.parse(&key.form, node, &self.path_of(key.name)).map(Some),
            None => Ok(None),
        }
    }

    /// The values of a list; one text is a list of one, and what a variable says is separated by commas.
    pub(super) fn list<F: Form>(&self, key: &Key<Items<F>>) -> Read<Vec<F::Value>> {
        let path = self.path_of(key.name);
        match self.node(key)? {
            None if matches!(key.default, Default::Required(_)) => Err(self.missing(key)),
            None => Ok(Vec::new()),
            Some(node) => {
                let values = self.cx.items(&key.form.form, node, &path)?;
                if values.is_empty() || values.len() > key.form.count_max {
                    let count = values.len();
                    return Err(self.fault(key, format!("has {count} items; allowed: {}", key.form.allowed())));
                }
                Ok(values)
            }
        }
    }

    /// A block inside this one; its defaults where it is not written.
    pub(super) fn block(&self, key: &Key<form::Block>) -> Read<Block<'a>> {
        let opened = self.optional_block(key)?;
        Ok(opened.unwrap_or_else(|| self.absent(self.path_of(key.name), key.form.section)))
    }

    /// A block inside this one, if it is written.
    pub(super) fn optional_block(&self, key: &Key<form::Block>) -> Read<Option<Block<'a>>> {
        match (self.node(key)?, key.default) {
            (Some(node), _) => Block::open(self.cx, node, &self.path_of(key.name), key.form.section).map(Some),
            (None, Default::Required(_)) => Err(self.missing(key)),
            (None, _) => Ok(None),
        }
    }

    /// The blocks under names that the user chose.
    pub(super) fn named_blocks(&self, key: &Key<form::Block>) -> Read<Vec<(String, Read<Block<'a>>)>> {
        let path = self.path_of(key.name);
        match self.node(key)?.map(|node| &node.value) {
            None => Ok(Vec::new()),
            Some(Value::Map(entries)) => Ok(entries
                .iter()
                .map(|entry| {
                    let path = join(&path, &entry.key);
                    (entry.key.clone(), Block::open(self.cx, &entry.node, &path, key.form.section))
                })
                .collect()),
            Some(_) => Err(self.fault(key, format!("must be a block; allowed: {}", key.form.allowed()))),
        }
    }

    /// Names and values that are passed through; a value is hidden by its form.
    pub(super) fn pairs<F: Form>(&self, key: &Key<form::Pairs>, value: &F) -> Read<BTreeMap<String, F::Value>> {
        let entries = match self.node(key)?.map(|node| &node.value) {
            None => return Ok(BTreeMap::new()),
            Some(Value::Map(entries)) => entries,
            Some(_) => return Err(self.fault(key, format!("must be a block; allowed: {}", key.form.allowed()))),
        };
        let pairs = all(entries.iter().map(|entry| {
            let path = join(&self.path_of(key.name), &entry.key);
            Ok((entry.key.clone(), self.cx.parse(value, &entry.node, &path)?))
        }))?;
        Ok(pairs.into_iter().collect())
    }

    /// Refuses a key of a later version.
    pub(super) fn later(&self, key: &Key<Later>) -> Read<()> {
        self.read.borrow_mut().push(key.name);
        match self.entries.iter().any(|entry| entry.key == key.name) {
            true => Err(self.fault(key, key.form.until)),
            false => Ok(()),
        }
    }

    fn missing<F: Form>(&self, key: &Key<F>) -> Reported {
        self.fault(key, format!("missing; allowed: {}", key.form.allowed()))
    }

    /// Ends the reading. A key of the table that nobody read is a fault of this program.
    pub(super) fn close(self) {
        let read = self.read.into_inner();
        for key in self.section.keys {
            debug_assert!(read.contains(&key.name()), "{}.{} is in the table and never read", self.path, key.name());
        }
    }
}
