//! Keys that the environment overrides: `EVENKEEL__KAFKA__BROKERS` is `kafka.brokers`.
//!
//! The rules are told to users by [`RULES`]. Must never show a value. Tested below.

use std::ffi::OsStr;
use std::sync::Arc;

use super::expand::join;
use super::fault::{Fault, Place};
use super::tree::{self, Entry, Node, Origin, Scalar, Value};
use super::variables::{NoText, Variables, text_of};

/// What the names of such variables start with; two underscores stand between the parts of a key.
pub(super) const PREFIX: &str = "EVENKEEL__";

/// The part of the config whose keys are librdkafka's: dots, where all other keys have underscores.
const DOTTED: &str = "kafka.options";

/// How to override a key, for people.
pub(super) const RULES: &str = "\
Every key can be overridden by an environment variable: EVENKEEL__, then the parts of the key in capitals, with two
underscores between them: EVENKEEL__KAFKA__BROKERS is kafka.brokers. In names that you chose, every character that is
no letter or digit is written as an underscore: EVENKEEL__STREAMS__MY_ORDERS__CRITICAL is streams.my-orders.critical.
The value is taken as it is. A list is separated by commas (a:9092,b:9092) or written as YAML ([a:9092, b:9092]), a
block is written as YAML ({every: 10m}); both replace what the file says. A variable that is set but empty is an
error.";

/// Puts the overriding values into the tree, and reports those that cannot be meant.
pub(super) fn overlay(root: &mut Node, variables: &Variables) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, value) in variables.with_prefix(PREFIX) {
        let place = Place::Variable(Arc::from(name));
        let result = node_of(value, &place).and_then(|node| {
            let parts = name[PREFIX.len()..].split("__").collect::<Vec<_>>();
            if parts.iter().any(|part| part.is_empty()) {
                return Err("names no key; write it as EVENKEEL__KAFKA__BROKERS".to_owned());
            }
            put(root, "", &parts, node)
        });
        if let Err(message) = result {
            faults.push(Fault { place, path: String::new(), message });
        }
    }
    faults
}

fn node_of(value: &OsStr, place: &Place) -> Result<Node, String> {
    let text = match text_of(value) {
        Ok(text) => text,
        Err(NoText::NotUtf8) => return Err("the value is not UTF-8".to_owned()),
        Err(NoText::Empty | NoText::Unset) => return Err("is set but empty; unset it, or give it a value".to_owned()),
    };
    if text.starts_with(['[', '{']) {
        let mut node = tree::parse(text).map_err(|fault| format!("the value is {}", fault.message))?;
        claim(&mut node, place);
        return Ok(node);
    }
    let scalar = Scalar { text: text.to_owned(), quoted: false, origin: Origin::Override };
    Ok(Node { place: place.clone(), value: Value::Text(scalar) })
}

/// Marks everything in a parsed value as coming from the variable.
fn claim(node: &mut Node, place: &Place) {
    node.place = place.clone();
    match &mut node.value {
        Value::Null | Value::Faulty => {}
        Value::Text(scalar) => scalar.origin = Origin::Override,
        Value::List(items) => items.iter_mut().for_each(|item| claim(item, place)),
        Value::Map(entries) => {
            for entry in entries {
                entry.place = place.clone();
                claim(&mut entry.node, place);
            }
        }
    }
}

fn put(node: &mut Node, path: &str, parts: &[&str], new: Node) -> Result<(), String> {
    let Some((part, rest)) = parts.split_first() else {
        *node = new;
        return Ok(());
    };
    if matches!(node.value, Value::Null | Value::Faulty) {
        *node = Node { place: new.place.clone(), value: Value::Map(Vec::new()) };
    }
    let entries = match &mut node.value {
        Value::Map(entries) => entries,
        Value::List(_) => return Err(format!("{path} is a list, and is replaced as a whole")),
        _ => return Err(format!("{path} is written in its short form, and is replaced as a whole")),
    };
    let index = match entries.iter().position(|entry| spelt(&entry.key) == spelt(part)) {
        Some(index) => index,
        None => {
            entries.push(Entry { key: new_key(path, part), place: new.place.clone(), node: empty(&new.place) });
            entries.len() - 1
        }
    };
    let entry = &mut entries[index];
    let path = join(path, &entry.key);
    if rest.is_empty() {
        entry.place = new.place.clone();
    }
    put(&mut entry.node, &path, rest, new)
}

fn empty(place: &Place) -> Node {
    Node { place: place.clone(), value: Value::Null }
}

/// How a key is spelt in the name of a variable.
fn spelt(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

fn new_key(path: &str, part: &str) -> String {
    let key = part.to_ascii_lowercase();
    if path == DOTTED { key.replace('_', ".") } else { key }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaid(file: &str, variables: &[(&str, &str)]) -> (Node, Vec<String>) {
        let mut root = tree::parse(file).unwrap();
        let faults = overlay(&mut root, &variables.iter().copied().collect());
        (root, faults.into_iter().map(|fault| fault.line("file").to_string()).collect())
    }

    fn find<'a>(node: &'a Node, path: &[&str]) -> &'a Node {
        path.iter().fold(node, |node, part| match &node.value {
            Value::Map(entries) => &entries.iter().find(|entry| entry.key == *part).unwrap().node,
            other => panic!("no map at {part}: {other:?}"),
        })
    }

    fn text(node: &Node) -> &str {
        match &node.value {
            Value::Text(scalar) => &scalar.text,
            other => panic!("no text: {other:?}"),
        }
    }

    #[test]
    fn variables_replace_and_add_keys() {
        let (root, faults) = overlaid(
            "name: a\nstreams: {my-orders: {critical: false}}\n\
             kafka: {brokers: [x], options: {socket.timeout.ms: 1}}\n",
            &[
                ("EVENKEEL__NAME", "null: [x"),
                ("EVENKEEL__STREAMS__MY_ORDERS__CRITICAL", "true"),
                ("EVENKEEL__KAFKA__BROKERS", "[a:1, 'b:2']"),
                ("EVENKEEL__KAFKA__OPTIONS__SOCKET_TIMEOUT_MS", "5"),
                ("EVENKEEL__KAFKA__OPTIONS__CLIENT_RACK", "r"),
                ("EVENKEEL__LIMITS__ADMITTED", "7"),
                ("EVENKEEL_CONFIG", "ignored"),
            ],
        );
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(text(find(&root, &["name"])), "null: [x");
        assert_eq!(text(find(&root, &["streams", "my-orders", "critical"])), "true");
        assert_eq!(text(find(&root, &["kafka", "options", "socket.timeout.ms"])), "5");
        assert_eq!(text(find(&root, &["kafka", "options", "client.rack"])), "r");
        assert_eq!(find(&root, &["limits", "admitted"]).place, Place::Variable("EVENKEEL__LIMITS__ADMITTED".into()));
        let Value::List(brokers) = &find(&root, &["kafka", "brokers"]).value else { panic!("no list") };
        assert_eq!(brokers.iter().map(text).collect::<Vec<_>>(), ["a:1", "b:2"]);
        let Value::Map(streams) = &find(&root, &["streams"]).value else { panic!("no map") };
        assert_eq!(streams.len(), 1);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let (_, faults) = overlaid(
            "name: a\nlist: [x]\n",
            &[
                ("EVENKEEL__", "x"),
                ("EVENKEEL__A____B", "x"),
                ("EVENKEEL__LIST__0", "x"),
                ("EVENKEEL__NAME__X", "x"),
                ("EVENKEEL__EMPTY", ""),
                ("EVENKEEL__YAML", "[x"),
            ],
        );
        assert_eq!(
            faults,
            [
                "EVENKEEL__: names no key; write it as EVENKEEL__KAFKA__BROKERS",
                "EVENKEEL__A____B: names no key; write it as EVENKEEL__KAFKA__BROKERS",
                "EVENKEEL__EMPTY: is set but empty; unset it, or give it a value",
                "EVENKEEL__LIST__0: list is a list, and is replaced as a whole",
                "EVENKEEL__NAME__X: name is written in its short form, and is replaced as a whole",
                "EVENKEEL__YAML: the value is not YAML: unclosed bracket '['",
            ]
        );
    }
}
