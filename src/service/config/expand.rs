//! `${NAME}` in the values of the file, and keys that stand twice.
//!
//! Own code rather than the YAML reader's, which stops at the first unset variable, and expands neither inside quotes
//! nor, so, inside `[ ]`. Values are never expanded twice. Must never show a value. Tested below.

use std::sync::Arc;

use super::fault::{Fault, Place};
use super::tree::{Node, Origin, Scalar, Value};
use super::variables::{NoText, Variables};

/// Expands all values of the tree, and reports every variable that is missing and every key that stands twice.
pub(super) fn expand(root: &mut Node, variables: &Variables) -> Vec<Fault> {
    let mut expander = Expander { variables, faults: Vec::new() };
    expander.node(root, "");
    expander.faults
}

struct Expander<'a> {
    variables: &'a Variables,
    faults: Vec<Fault>,
}

impl Expander<'_> {
    fn node(&mut self, node: &mut Node, path: &str) {
        match &mut node.value {
            Value::Null | Value::Faulty => {}
            Value::Text(scalar) => {
                if let Err(message) = self.scalar(scalar) {
                    self.fault(&node.place, path, message);
                    node.value = Value::Faulty;
                }
            }
            Value::List(items) => {
                for (i, item) in items.iter_mut().enumerate() {
                    self.node(item, &format!("{path}[{i}]"));
                }
            }
            Value::Map(entries) => {
                let mut seen: Vec<(String, Place)> = Vec::new();
                for entry in entries {
                    let path = join(path, &entry.key);
                    if let Some((_, first)) = seen.iter().find(|(key, _)| *key == entry.key) {
                        let message = format!("this key stands twice{}; remove one", at(first));
                        self.fault(&entry.place, &path, message);
                    } else {
                        seen.push((entry.key.clone(), entry.place.clone()));
                    }
                    self.node(&mut entry.node, &path);
                }
            }
        }
    }

    fn fault(&mut self, place: &Place, path: &str, message: String) {
        self.faults.push(Fault { place: place.clone(), path: path.to_owned(), message });
    }

    fn scalar(&self, scalar: &mut Scalar) -> Result<(), String> {
        if scalar.origin == Origin::Override || !scalar.text.contains("${") {
            return Ok(());
        }
        let mut used = None;
        scalar.text = text(&scalar.text, self.variables, &mut used)?;
        if let Some(name) = used {
            scalar.origin = Origin::Expanded(name);
        }
        Ok(())
    }
}

fn at(place: &Place) -> String {
    match place {
        Place::File { line, .. } => format!(", first in line {line}"),
        Place::Variable(_) => String::new(),
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Expands one text: `${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`.
fn text(text: &str, variables: &Variables, used: &mut Option<Arc<str>>) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start]);
            out.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let inner = &rest[start + 2..];
        let end = inner.find('}').ok_or("${ without }; write $${ for a literal ${")?;
        out.push_str(&reference(&inner[..end], variables, used)?);
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

fn reference(inner: &str, variables: &Variables, used: &mut Option<Arc<str>>) -> Result<String, String> {
    let (name, default) = match inner.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inner, None),
    };
    if !is_name(name) {
        let allowed = "allowed: ${NAME} and ${NAME:-default}, and $${ for a literal ${";
        return Err(format!("${{{}}} names no variable; {allowed}", name.escape_debug()));
    }
    if default.is_some_and(|default| default.contains("${")) {
        return Err(format!("the default of ${{{name}:-…}} holds another reference; it must be a plain text"));
    }
    match (variables.text(name), default) {
        (Ok(value), _) => {
            *used = Some(name.into());
            Ok(value.to_owned())
        }
        (Err(NoText::Unset | NoText::Empty), Some(default)) => Ok(default.to_owned()),
        (Err(NoText::Unset), None) => {
            Err(format!("the environment variable {name} is not set; set it, or write ${{{name}:-default}}"))
        }
        (Err(NoText::Empty), None) => {
            Err(format!("the environment variable {name} is empty; set it, or write ${{{name}:-default}}"))
        }
        (Err(NoText::NotUtf8), _) => Err(format!("the environment variable {name} is not UTF-8")),
    }
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn variables() -> Variables {
        let bad = OsString::from_vec(vec![0xff]);
        [("SET", OsString::from("value")), ("EMPTY", OsString::new()), ("DOLLAR", "${SET}".into()), ("BAD", bad)]
            .into_iter()
            .collect()
    }

    #[test]
    fn references_become_their_values() {
        for (written, expanded) in [
            ("plain", "plain"),
            ("${SET}", "value"),
            ("a-${SET}-${SET}", "a-value-value"),
            ("${UNSET:-x}", "x"),
            ("${EMPTY:-x}", "x"),
            ("${UNSET:-}", ""),
            ("${SET:-x}", "value"),
            ("${UNSET:-a:-b}", "a:-b"),
            ("$${SET}", "${SET}"),
            ("$$${SET}", "$${SET}"),
            ("$SET $ }{", "$SET $ }{"),
            ("${DOLLAR}", "${SET}"),
        ] {
            assert_eq!(text(written, &variables(), &mut None).as_deref(), Ok(expanded), "{written}");
        }
    }

    #[test]
    fn what_cannot_be_expanded_is_refused() {
        for (written, says) in [
            ("${UNSET}", "the environment variable UNSET is not set"),
            ("${EMPTY}", "the environment variable EMPTY is empty"),
            ("${BAD}", "the environment variable BAD is not UTF-8"),
            ("${BAD:-x}", "the environment variable BAD is not UTF-8"),
            ("${SET", "without }"),
            ("${}", "names no variable"),
            ("${1A}", "names no variable"),
            ("${SET-x}", "names no variable"),
            ("${a b}", "names no variable"),
            ("${UNSET:-${SET}}", "holds another reference"),
        ] {
            let error = text(written, &variables(), &mut None).unwrap_err();
            assert!(error.contains(says), "{written}: {error}");
        }
    }
}
