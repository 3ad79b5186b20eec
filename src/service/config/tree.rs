//! The raw config: a tree of texts, lists and maps, each with its place in the file. Nothing is done but parse.
//!
//! A tree rather than structs, so that a fault in one key hides no other and every one keeps its line. Must never guess
//! a type: `1.10` stays the text that was written. Tested below, and by the table of bad files in `tests/it/config.rs`.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Location, NonFiniteFloatPolicy, Spanned};

use super::fault::{Fault, Place};

/// The deepest nesting. The deepest key needs 8, and each level costs stack.
const DEPTH_MAX: usize = 24;
/// The most values, aliases expanded: a large config has a few hundred, an alias bomb has billions.
const NODES_MAX: usize = 20_000;

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub place: Place,
    pub value: Value,
}

/// What can be written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Nothing, `null` or `~`.
    Null,
    Text(Scalar),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// Already reported; says nothing more.
    Faulty,
}

/// A key of a map and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub key: String,
    pub place: Place,
    pub node: Node,
}

/// A single value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scalar {
    pub text: String,
    /// Whether it stood in quotes, and so is no number.
    pub quoted: bool,
    pub origin: Origin,
}

/// Where the text of a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Origin {
    /// The file, or the table of defaults.
    Written,
    /// The file, with this variable's value in it.
    Expanded(Arc<str>),
    /// A variable that overrides the key.
    Override,
}

/// Parses one YAML document.
pub(super) fn parse(text: &str) -> Result<Node, Fault> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        reject_unsupported_tags: true,
        null_as_string: true,
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, max_nodes: NODES_MAX, max_events: 4 * NODES_MAX },
    };
    match serde_saphyr::from_str_with_options::<Spanned<Parsed>>(text, options) {
        Ok(parsed) => Ok(node(text, parsed)),
        Err(error) => Err(super::syntax::fault(text, &error)),
    }
}

/// What the YAML reader hands over. It types plain texts on its own; the text itself is then taken from the file.
enum Parsed {
    Null,
    Plain(String),
    Text(String),
    List(Vec<Spanned<Parsed>>),
    Map(Vec<(Spanned<String>, Spanned<Parsed>)>),
}

struct ParsedVisitor;

impl<'de> Visitor<'de> for ParsedVisitor {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Parsed, E> {
        Ok(Parsed::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Parsed, E> {
        Ok(Parsed::Plain(value.to_string()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Parsed, E> {
        Ok(Parsed::Plain(value.to_string()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Parsed, E> {
        Ok(Parsed::Plain(value.to_string()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Parsed, E> {
        Ok(Parsed::Plain(value.to_string()))
    }
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Parsed, E> {
        Ok(Parsed::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Parsed, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = seq.next_element()? {
            list.push(item);
        }
        Ok(Parsed::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Parsed::Map(entries))
    }
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParsedVisitor)
    }
}

fn node(source: &str, parsed: Spanned<Parsed>) -> Node {
    let place = place(&parsed.defined);
    let written = slice(source, &parsed.defined);
    let text = |text: String, quoted| Value::Text(Scalar { text, quoted, origin: Origin::Written });
    let value = match parsed.value {
        Parsed::Null => Value::Null,
        Parsed::Plain(typed) => text(written.map_or(typed, str::to_owned), false),
        Parsed::Text(exact) => text(exact, written.is_some_and(|w| w.starts_with(['"', '\'']))),
        Parsed::List(items) => Value::List(items.into_iter().map(|item| node(source, item)).collect()),
        Parsed::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| Entry {
                    place: self::place(&key.defined),
                    key: key.value,
                    node: node(source, value),
                })
                .collect(),
        ),
    };
    Node { place, value }
}

pub(super) fn place(location: &Location) -> Place {
    Place::File { line: location.line().max(1), column: location.column().max(1) }
}

fn slice<'a>(source: &'a str, location: &Location) -> Option<&'a str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let len = usize::try_from(location.span().byte_len()?).ok()?;
    source.get(start..start.checked_add(len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Vec<Entry> {
        match parse(text).unwrap().value {
            Value::Map(entries) => entries,
            other => panic!("not a map: {other:?}"),
        }
    }

    #[test]
    fn texts_stay_as_they_were_written() {
        let text = "a: 1.10\nb: 0x1f\nc: \"12\"\nd: yes\ne: true\nf: 010\ng: -5\nh: .inf\ni: 1e999\nj: 'x'\n\
                    k: ü 1\nl: 1_000\n";
        let read = entries(text)
            .into_iter()
            .map(|e| match e.node.value {
                Value::Text(scalar) => (scalar.text, scalar.quoted),
                other => panic!("{other:?}"),
            })
            .collect::<Vec<_>>();
        let plain = ["1.10", "0x1f", "12", "yes", "true", "010", "-5", ".inf", "1e999", "x", "ü 1", "1_000"];
        let quoted = ["12", "x"];
        assert_eq!(read, plain.map(|text| (text.to_owned(), quoted.contains(&text))));
    }

    #[test]
    fn every_value_knows_its_place() {
        let read = entries("\u{feff}a: 1\r\nb:\r\n  c: [x, {d: 2}]\r\n");
        let at = |line, column| Place::File { line, column };
        assert_eq!((&read[0].place, &read[0].node.place), (&at(1, 1), &at(1, 4)));
        let Value::Map(b) = &read[1].node.value else { panic!("no map") };
        let Value::List(c) = &b[0].node.value else { panic!("no list") };
        let Value::Map(d) = &c[1].value else { panic!("no map") };
        assert_eq!((&b[0].place, &c[0].place, &d[0].node.place), (&at(3, 3), &at(3, 7), &at(3, 14)));
    }

    #[test]
    fn aliases_point_to_where_the_value_stands() {
        let read = entries("x: &a {t: 5}\ny: *a\n");
        let Value::Map(y) = &read[1].node.value else { panic!("no map") };
        assert_eq!(y[0].node.place, Place::File { line: 1, column: 11 });
    }
}
