//! What the whole reading of a config shares: where keys stand, what is wrong, and how a text is read.
//!
//! Must never show a secret. Tested by the table of bad configs in `tests/it/config.rs`.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::fault::{Fault, Place};
use super::form::Form;
use super::places::Places;
use super::tree::{Node, Origin, Scalar, Value};
use super::variables::Variables;

/// A value, or the mark that its fault is already reported.
pub(super) type Read<T> = Result<T, Reported>;

/// Something is wrong, and it has been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported;

/// What a whole reading has found.
pub(super) struct Finished {
    pub faults: Vec<Fault>,
    pub warnings: Vec<Fault>,
    pub places: Places,
}

/// What the whole reading shares.
pub(super) struct Context<'a> {
    pub variables: &'a Variables,
    /// The folder of the config file, absolute.
    pub dir: PathBuf,
    /// The same as the user wrote it, for messages.
    shown_dir: PathBuf,
    places: Places,
    faults: RefCell<Vec<Fault>>,
    warnings: RefCell<Vec<Fault>>,
}

impl<'a> Context<'a> {
    pub(super) fn new(root: &Node, variables: &'a Variables, shown_dir: &Path, faults: Vec<Fault>) -> Self {
        Self {
            variables,
            dir: std::path::absolute(shown_dir.join(".")).unwrap_or_else(|_| shown_dir.to_owned()),
            shown_dir: shown_dir.to_owned(),
            places: Places::of(root),
            faults: RefCell::new(faults),
            warnings: RefCell::default(),
        }
    }

    /// Reports what is wrong with the key at `path`.
    pub(super) fn fault(&self, path: &str, message: impl Into<String>) -> Reported {
        self.fault_at(self.places.find(path), path, message.into())
    }

    pub(super) fn fault_at(&self, place: Place, path: &str, message: String) -> Reported {
        self.faults.borrow_mut().push(Fault { place, path: path.to_owned(), message });
        Reported
    }

    /// Notes what works and yet should be said.
    pub(super) fn warn(&self, path: &str, message: impl Into<String>) {
        let fault = Fault { place: self.places.find(path), path: path.to_owned(), message: message.into() };
        self.warnings.borrow_mut().push(fault);
    }

    /// Whether the file, or a variable, says something there.
    pub(super) fn is_written(&self, path: &str) -> bool {
        self.places.contains(path)
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

    /// Everything that was reported, each in the order of the file, and where the keys stand.
    pub(super) fn finish(self) -> Finished {
        let (mut faults, mut warnings) = (self.faults.into_inner(), self.warnings.into_inner());
        faults.sort_by(|a, b| a.place.cmp(&b.place));
        warnings.sort_by(|a, b| a.place.cmp(&b.place));
        Finished { faults, warnings, places: self.places }
    }
}

pub(super) fn text_node(text: &str, origin: Origin) -> Node {
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
