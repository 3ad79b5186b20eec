//! What a key is: its name, what may be written, its default, and why. The reader, the reference, the example and the
//! docs are all made from these, so that none of them can say something else.

use super::form::Form;

/// A key and what may be written there.
pub(super) struct Key<F> {
    pub name: &'static str,
    pub form: F,
    pub default: Default,
    /// What it is, one sentence.
    pub about: &'static str,
    /// Why the default and the limits are what they are; empty where there is nothing to say.
    pub reason: &'static str,
}

/// What holds where a key is not written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Default {
    /// It must be written; the text is an example.
    Required(&'static str),
    /// This text, read like a written one.
    Is(&'static str),
    /// Something that no text says.
    Absent {
        /// What holds then.
        means: &'static str,
        /// An example of a value; for a block its one-line form, or empty to print its keys.
        example: &'static str,
    },
}

/// A block of keys.
pub(super) struct Section {
    /// Its place, with `NAME` for what users name: `streams.NAME.kafka`.
    pub path: &'static str,
    /// What it is, one sentence.
    pub about: &'static str,
    pub keys: &'static [&'static dyn AnyKey],
}

/// A key, whatever may be written there.
pub(super) trait AnyKey: Sync {
    fn name(&self) -> &'static str;
    fn default(&self) -> Default;
    fn about(&self) -> &'static str;
    fn reason(&self) -> &'static str;
    /// What may be written, in words.
    fn allowed(&self) -> String;
    /// The block that stands, or may stand, there.
    fn block(&self) -> Option<&'static Section>;
    /// Whether that block stands under names that the user chooses.
    fn is_map(&self) -> bool;
    /// Whether the key is known and refused in this version.
    fn is_later(&self) -> bool;
}

impl<F: Form> AnyKey for Key<F> {
    fn name(&self) -> &'static str {
        self.name
    }
    fn default(&self) -> Default {
        self.default
    }
    fn about(&self) -> &'static str {
        self.about
    }
    fn reason(&self) -> &'static str {
        self.reason
    }
    fn allowed(&self) -> String {
        self.form.allowed()
    }
    fn block(&self) -> Option<&'static Section> {
        self.form.block()
    }
    fn is_map(&self) -> bool {
        self.form.is_map()
    }
    fn is_later(&self) -> bool {
        self.form.is_later()
    }
}
