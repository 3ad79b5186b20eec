//! What may be written at a key: how it is read, what is wrong with it, and what is allowed, in words.
//!
//! Must never read a file or the environment, and never show a text that may be a secret. Tested below and through the
//! table of bad configs in `tests/it/config.rs`.

mod number;
mod text;

use super::key::Section;
use super::tree::Scalar;

pub(super) use number::{Decimal, Number, Percent, Span, show_duration};
pub(super) use text::{
    Argument, Broker, FilePath, Hidden, HttpUrl, IdFrom, Listen, Opaque, Text, any, env_name, name, pointer, topic,
};

/// What may be written at a key.
pub(super) trait Form: Sync {
    /// What a text there means.
    type Value;

    /// Reads a text.
    fn parse(&self, scalar: &Scalar) -> Result<Self::Value, Wrong>;

    /// What is allowed, in words.
    fn allowed(&self) -> String;

    /// The block that may stand there.
    fn block(&self) -> Option<&'static Section> {
        None
    }

    /// Whether the block stands under names that the user chooses.
    fn is_map(&self) -> bool {
        false
    }

    /// Whether the key is known and refused in this version.
    fn is_later(&self) -> bool {
        false
    }

    /// Whether a variable separates several of them by commas.
    fn is_separable(&self) -> bool {
        true
    }
}

/// What is wrong with a text; follows the text or its name: `0` "is too small".
#[derive(Debug, PartialEq)]
pub(super) struct Wrong {
    pub says: String,
    /// Whether the text may hold a secret, and so must not be shown.
    pub hide: bool,
}

impl<T: Into<String>> From<T> for Wrong {
    fn from(says: T) -> Self {
        Self { says: says.into(), hide: false }
    }
}

/// One of a few words.
pub(super) struct Choice<T: 'static> {
    pub words: &'static [(&'static str, T)],
}

impl<T: Copy + Sync> Form for Choice<T> {
    type Value = T;

    fn parse(&self, scalar: &Scalar) -> Result<T, Wrong> {
        if let Some((_, value)) = self.words.iter().find(|(word, _)| *word == scalar.text) {
            return Ok(*value);
        }
        let hint = nearest(&scalar.text, self.words.iter().map(|(word, _)| *word));
        Err(format!("is unknown{}", did_you_mean(hint)).into())
    }

    fn allowed(&self) -> String {
        either(&self.words.iter().map(|(word, _)| *word).collect::<Vec<_>>())
    }
}

/// `true` or `false`.
pub(super) struct Flag;

impl Form for Flag {
    type Value = bool;

    fn parse(&self, scalar: &Scalar) -> Result<bool, Wrong> {
        match scalar.text.as_str() {
            _ if scalar.quoted => Err("is a text, since it stands in quotes".into()),
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("is neither true nor false".into()),
        }
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }
}

/// A form, or a word that switches the thing off.
pub(super) struct OrWord<F> {
    pub word: &'static str,
    pub form: F,
}

impl<F: Form> Form for OrWord<F> {
    type Value = Option<F::Value>;

    fn parse(&self, scalar: &Scalar) -> Result<Self::Value, Wrong> {
        if scalar.text == self.word { Ok(None) } else { self.form.parse(scalar).map(Some) }
    }

    fn allowed(&self) -> String {
        format!("{}, or {}", self.form.allowed(), self.word)
    }
}

/// A list; a single text is a list of one.
pub(super) struct Items<F> {
    pub form: F,
    pub count_max: usize,
}

impl<F: Form> Form for Items<F> {
    type Value = F::Value;

    fn parse(&self, scalar: &Scalar) -> Result<F::Value, Wrong> {
        self.form.parse(scalar)
    }

    fn allowed(&self) -> String {
        format!("a list of 1 to {}, each {}", self.count_max, self.form.allowed())
    }
}

/// A block of keys, or a short form of it where there is one.
pub(super) struct Block {
    pub section: &'static Section,
    /// The short form in words; empty if there is none.
    pub short: &'static str,
    /// Whether users name the blocks themselves.
    pub named: bool,
}

impl Block {
    pub(super) const fn of(section: &'static Section) -> Self {
        Self { section, short: "", named: false }
    }
}

impl Form for Block {
    type Value = ();

    fn parse(&self, _: &Scalar) -> Result<(), Wrong> {
        Err(if self.short.is_empty() { "is no block of keys".into() } else { "is neither".into() })
    }

    fn allowed(&self) -> String {
        if self.section.keys.is_empty() {
            return "an empty block, as {}".to_owned();
        }
        let keys = self.section.keys.iter().map(|key| key.name()).collect::<Vec<_>>().join(", ");
        let block = if self.named {
            format!("names of your own, each a block of {keys}")
        } else {
            format!("a block of {keys}")
        };
        if self.short.is_empty() { block } else { format!("{}, or {block}", self.short) }
    }

    fn block(&self) -> Option<&'static Section> {
        Some(self.section)
    }

    fn is_map(&self) -> bool {
        self.named
    }
}

/// Names and values that are passed through as they are.
pub(super) struct Pairs {
    pub allowed: &'static str,
}

impl Form for Pairs {
    type Value = ();

    fn parse(&self, _: &Scalar) -> Result<(), Wrong> {
        Err(Wrong { says: "is no block of names and values".to_owned(), hide: true })
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

/// A key of a later version.
pub(super) struct Later {
    /// What to do until then.
    pub until: &'static str,
}

impl Form for Later {
    type Value = ();

    fn parse(&self, _: &Scalar) -> Result<(), Wrong> {
        Err(self.until.into())
    }

    fn allowed(&self) -> String {
        format!("nothing yet: {}", self.until)
    }

    fn is_later(&self) -> bool {
        true
    }
}

/// The word that was probably meant: one that goes on where the text ends or the reverse, or has at most a third of its
/// letters off.
pub(super) fn nearest<'a>(text: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer texts are no slip of the pen, and comparing them costs time.
    const BYTES_MAX: usize = 64;
    if text.len() > BYTES_MAX {
        return None;
    }
    let text = text.to_lowercase();
    words
        .into_iter()
        .map(|word| (distance(&text, &word.to_lowercase()), word))
        .filter(|(distance, word)| *distance <= word.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

fn distance(text: &str, word: &str) -> usize {
    /// Shorter beginnings are shared by too many words.
    const SHARED_MIN: usize = 4;
    let is_beginning = text.len().min(word.len()) >= SHARED_MIN && (text.starts_with(word) || word.starts_with(text));
    if is_beginning { 1 } else { strsim::damerau_levenshtein(text, word) }
}

/// A hint for a wrong word, in brackets, since more follows.
pub(super) fn did_you_mean(word: Option<&str>) -> String {
    word.map_or_else(String::new, |word| format!(" (did you mean {word}?)"))
}

/// `a, b or c`.
pub(super) fn either(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

#[cfg(test)]
pub(super) fn written(text: &str) -> Scalar {
    Scalar { text: text.to_owned(), quoted: false, origin: super::tree::Origin::Written }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognised() {
        let words = ["name", "shards", "reconciler", "resync", "timeout"];
        for (text, word) in [
            ("shard", Some("shards")),
            ("sahrds", Some("shards")),
            ("Shards", Some("shards")),
            ("reconsiler", Some("reconciler")),
            ("time_out", Some("timeout")),
            ("resyncs", Some("resync")),
            ("reconcilerset", Some("reconciler")),
            ("time", Some("timeout")),
            ("tim", None),
            ("volume", None),
            ("", None),
        ] {
            assert_eq!(nearest(text, words), word, "{text}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), words), None);
    }

    #[test]
    fn words_switch_off_and_nothing_else_does() {
        let form = OrWord { word: "none", form: Number { min: 1, max: 9 } };
        assert_eq!(form.parse(&written("none")), Ok(None));
        assert_eq!(form.parse(&written("3")).map(|n| n.map(u32::from)), Ok(Some(3)));
        assert_eq!(form.parse(&written("0")), Err("is too small".into()));
        assert_eq!(form.allowed(), "1 to 9, or none");
    }
}
