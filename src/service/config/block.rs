//! Reads a block of the raw tree key by key, by the table of keys, and collects what is wrong.
//!
//! A fault in one key never stops the reading of the next. Must never show a secret. Tested by the table of bad configs
//! in `tests/it/config.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::bounds;
use super::expand::join;
use super::fault::{Fault, Place};
use super::form::{self, Form, Items, Later, nearest};
use super::key::{Default, Key, Section};
use super::tree::{Entry, Node, Origin, Scalar, Value};
use super::variables::Variables;

/// A value, or the mark that its fault is already reported.
pub(super) type Read<T> = Result<T, Reported>;

/// Something is wrong, and it has been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported;

/// What the whole reading shares.
pub(super) struct Context<'a> {
    pub variables: &'a Variables,
    /// The folder of the config file, absolute.
    pub dir: PathBuf,
    /// The same as the user wrote it, for messages.
    shown_dir: PathBuf,
    places: BTreeMap<String, Place>,
    faults: RefCell<Vec<Fault>>,
    warnings: RefCell<Vec<Fault>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(root: &Node, variables: &'a Variables, shown_dir: &Path, faults: Vec<Fault>) -> Self {
        let mut places = BTreeMap::new();
        collect_places(root, "", &mut places);
        Self {
            variables,
            dir: std::path::absolute(shown_dir.join(".")).unwrap_or_else(|_| shown_dir.to_owned()),
            shown_dir: shown_dir.to_owned(),
            places,
            faults: RefCell::new(faults),
            warnings: RefCell::default(),
        }
    }

    /// Reports what is wrong with the key at `path`.
    pub(super) fn fault(&self, path: &str, message: impl Into<String>) -> Reported {
        self.fault_at(self.place(path), path, message.into())
    }

    fn fault_at(&self, place: Place, path: &str, message: String) -> Reported {
        self.faults.borrow_mut().push(Fault { place, path: path.to_owned(), message });
        Reported
    }

    /// Notes what works and yet should be said.
    pub(super) fn warn(&self, path: &str, message: impl Into<String>) {
        let fault = Fault { place: self.place(path), path: path.to_owned(), message: message.into() };
        self.warnings.borrow_mut().push(fault);
    }

    /// Whether the file, or a variable, says something there.
    pub(super) fn is_written(&self, path: &str) -> bool {
        self.places.contains_key(path)
    }

    /// A path of the file as messages show it.
    pub(super) fn shown(&self, path: &Path) -> PathBuf {
        self.shown_dir.join(path)
    }

    /// A path of the file as the process can use it, wherever it runs.
    pub(super) fn absolute(&self, path: &Path) -> PathBuf {
        let path = self.dir.join(path);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// Everything that was reported, each in the order of the file.
    pub(super) fn finish(self) -> (Vec<Fault>, Vec<Fault>) {
        let (mut faults, mut warnings) = (self.faults.into_inner(), self.warnings.into_inner());
        faults.sort_by(|a, b| a.place.cmp(&b.place));
        warnings.sort_by(|a, b| a.place.cmp(&b.place));
        (faults, warnings)
    }

    /// The place of a key, or of the nearest block around it.
    fn place(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            match (self.places.get(path), path.rfind(['.', '['])) {
                (Some(place), _) => return place.clone(),
                (None, Some(end)) => path = &path[..end],
                (None, None) => return Place::START,
            }
        }
    }
}

/// A block is found where its key stands, a value where it stands itself.
fn collect_places(node: &Node, path: &str, places: &mut BTreeMap<String, Place>) {
    match &node.value {
        Value::Map(entries) => {
            for entry in entries {
                let path = join(path, &entry.key);
                let is_block = matches!(entry.node.value, Value::Map(_) | Value::List(_) | Value::Null);
                let place = if is_block { &entry.place } else { &entry.node.place };
                places.entry(path.clone()).or_insert_with(|| place.clone());
                collect_places(&entry.node, &path, places);
            }
        }
        Value::List(items) => {
            for (i, item) in items.iter().enumerate() {
                places.insert(format!("{path}[{i}]"), item.place.clone());
            }
        }
        _ => {}
    }
}

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

fn text_node(text: &str, origin: Origin) -> Node {
    let scalar = Scalar { text: text.to_owned(), quoted: false, origin };
    Node { place: Place::START, value: Value::Text(scalar) }
}

impl Context<'_> {
    /// Reads one text.
    pub(super) fn parse<F: Form>(&self, form: &F, node: &Node, path: &str) -> Read<F::Value> {
        let scalar = match &node.value {
            Value::Text(scalar) => scalar,
            Value::Faulty => return Err(Reported),
            Value::Null => return Err(self.fault(path, "has no value; give it one, or remove the key")),
            Value::List(_) | Value::Map(_) => {
                let what = if matches!(node.value, Value::List(_)) { "a list" } else { "a block" };
                return Err(self.fault(path, format!("is {what}; allowed: {}", form.allowed())));
            }
        };
        form.parse(scalar).map_err(|wrong| {
            let subject = subject(scalar, wrong.hide);
            self.fault(path, format!("{subject} {}; allowed: {}", wrong.says, form.allowed()))
        })
    }

    /// Reads a list of texts, or one text.
    pub(super) fn items<F: Form>(&self, form: &F, node: &Node, path: &str) -> Read<Vec<F::Value>> {
        match &node.value {
            Value::List(items) => all(items.iter().enumerate().map(|(i, item)| {
                let path = format!("{path}[{i}]");
                self.parse(form, item, &path)
            })),
            Value::Text(scalar) if scalar.origin == Origin::Override && form.is_separable() => {
                let parts = scalar.text.split(',').map(|part| text_node(part.trim(), Origin::Override));
                all(parts.map(|part| self.parse(form, &part, path)))
            }
            _ => self.parse(form, node, path).map(|value| vec![value]),
        }
    }
}

/// All values, or the mark that something was reported; every value is read either way.
pub(super) fn all<T>(reads: impl Iterator<Item = Read<T>>) -> Read<Vec<T>> {
    let reads = reads.collect::<Vec<_>>();
    reads.into_iter().collect()
}

/// What is wrong, for a message: the text itself, unless it is long or came from the environment, where secrets live.
fn subject(scalar: &Scalar, hide: bool) -> String {
    /// Longer texts say nothing more to a person.
    const SHOWN_CHARS_MAX: usize = 60;
    match &scalar.origin {
        Origin::Expanded(name) => format!("the value of ${{{name}}}"),
        Origin::Override => "the value".to_owned(),
        Origin::Written if hide || scalar.text.is_empty() => "the value".to_owned(),
        Origin::Written => {
            let mut shown = scalar.text.chars().take(SHOWN_CHARS_MAX).collect::<String>().escape_debug().to_string();
            if scalar.text.chars().count() > SHOWN_CHARS_MAX {
                shown.push('…');
            }
            if scalar.quoted || shown.contains(' ') { format!("\"{shown}\"") } else { shown }
        }
    }
}
