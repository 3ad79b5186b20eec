//! The standard variables of OpenTelemetry: each fills in a key of `telemetry.otlp` that is not written.
//!
//! So what is written in the config, or overridden by an `EVENKEEL__…` variable, wins over `OTEL_…`, and a signal's own
//! key wins over the one for all three. A variable that is empty counts as unset, as the standard says; one that makes
//! no sense is a fault like any other, under its own name. Must never show a value, since headers hold tokens. Tested
//! below and by the files `otlp*` of `tests/it/config/`.

use std::sync::Arc;

use super::fault::{Fault, Place};
use super::resolved::Signal;
use super::tree::{Entry, Node, Origin, Scalar, Value};
use super::variables::{NoText, Variables};

/// The block that they fill in.
const BLOCK: [&str; 2] = ["telemetry", "otlp"];

/// Whether everything is switched off by `OTEL_SDK_DISABLED`.
pub(super) fn is_disabled(variables: &Variables) -> bool {
    variables.text(DISABLED).is_ok_and(|text| text.trim().eq_ignore_ascii_case("true"))
}

/// The variable that switches everything off.
pub(super) const DISABLED: &str = "OTEL_SDK_DISABLED";

/// Fills in what is not written. Without a block in the config it takes an endpoint, or an exporter that is named, to
/// switch OTLP on.
pub(super) fn fill_in(root: &mut Node, variables: &Variables) -> Vec<Fault> {
    let mut standard = Standard { variables, faults: Vec::new() };
    let is_written = child(root, &BLOCK).is_some();
    let signals = standard.signals(is_written);
    if !is_written && signals.as_ref().is_none_or(|signals| signals.0.is_empty()) {
        // Nobody asks for it.
        return standard.faults;
    }
    let mut values = standard.values();
    if let Some((names, place)) = signals {
        let items = names.into_iter().map(|name| text(name.to_owned(), &place)).collect();
        values.push((vec!["signals".to_owned()], Node { place, value: Value::List(items) }));
    }
    for (path, node) in values {
        let path = BLOCK.into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>();
        put(root, &path, node);
    }
    standard.faults
}

/// A value and the key that it fills in, in parts.
type Filled = (Vec<String>, Node);

struct Standard<'a> {
    variables: &'a Variables,
    faults: Vec<Fault>,
}

impl Standard<'_> {
    /// What the variables say, the signals apart.
    fn values(&mut self) -> Vec<Filled> {
        let mut values = Vec::new();
        self.connection(&mut values, "OTEL_EXPORTER_OTLP", None);
        for signal in Signal::ALL {
            let prefix = format!("OTEL_EXPORTER_OTLP_{}", signal.name().to_uppercase());
            self.connection(&mut values, &prefix, Some(signal));
        }
        for (prefix, signal) in [("OTEL_BSP", "traces"), ("OTEL_BLRP", "logs")] {
            let key = |name: &str| vec![signal.to_owned(), name.to_owned()];
            self.one(&mut values, &format!("{prefix}_MAX_QUEUE_SIZE"), key("queue"), as_it_is);
            self.one(&mut values, &format!("{prefix}_MAX_EXPORT_BATCH_SIZE"), key("batch"), as_it_is);
            self.one(&mut values, &format!("{prefix}_SCHEDULE_DELAY"), key("delay"), milliseconds);
        }
        self.one(&mut values, "OTEL_METRIC_EXPORT_INTERVAL", vec!["interval".to_owned()], milliseconds);
        self.sampler(&mut values);
        // Entries that come first stay, and this name is the more specific one.
        let service = vec!["resource".to_owned(), "service.name".to_owned()];
        self.one(&mut values, "OTEL_SERVICE_NAME", service, as_it_is);
        self.pairs(&mut values, "OTEL_RESOURCE_ATTRIBUTES", &["resource".to_owned()]);
        values
    }

    /// How to reach the collector, for all signals or for one.
    fn connection(&mut self, values: &mut Vec<Filled>, prefix: &str, signal: Option<Signal>) {
        let keys: [(&str, &str, Convert); 5] = [
            ("ENDPOINT", "endpoint", as_it_is),
            ("PROTOCOL", "protocol", as_it_is),
            ("TIMEOUT", "timeout", milliseconds),
            ("COMPRESSION", "compression", as_it_is),
            ("CERTIFICATE", "ca_file", as_it_is),
        ];
        let path = |key: &str| {
            let signal = signal.map(|signal| signal.name().to_owned());
            signal.into_iter().chain([key.to_owned()]).collect::<Vec<_>>()
        };
        for (variable, key, convert) in keys {
            self.one(values, &format!("{prefix}_{variable}"), path(key), convert);
        }
        self.pairs(values, &format!("{prefix}_HEADERS"), &path("headers"));
    }

    fn one(&mut self, values: &mut Vec<Filled>, name: &str, path: Vec<String>, convert: Convert) {
        let Some(value) = self.text(name) else { return };
        match convert(value) {
            Ok(value) => values.push((path, text(value, &place(name)))),
            Err(says) => self.fault(name, says),
        }
    }

    /// `name=value,name=value`, values with percent signs decoded.
    fn pairs(&mut self, values: &mut Vec<Filled>, name: &str, path: &[String]) {
        let Some(pairs) = self.text(name) else { return };
        let mut wrong = false;
        for pair in pairs.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let decoded =
                |text: &str| percent_encoding::percent_decode_str(text.trim()).decode_utf8().ok().map(String::from);
            match pair.split_once('=').map(|(key, value)| (key.trim(), decoded(value))) {
                Some((key, Some(value))) if !key.is_empty() => {
                    let path = path.iter().cloned().chain([key.to_owned()]).collect();
                    values.push((path, text(value, &place(name))));
                }
                _ => wrong = true,
            }
        }
        if wrong {
            self.fault(name, "is no list of NAME=VALUE, separated by commas, with other characters as %2C");
        }
    }

    fn sampler(&mut self, values: &mut Vec<Filled>) {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let Some(sampler) = self.text(NAME) else { return };
        // An item's trace has no parent, so what is based on one always takes its way for roots.
        let share = match sampler.strip_prefix("parentbased_").unwrap_or(sampler) {
            "always_on" => Ok("100%".to_owned()),
            "always_off" => Ok("0%".to_owned()),
            "traceidratio" => return self.one(values, ARGUMENT, vec!["sampling".to_owned()], ratio),
            _ => Err("is unknown; allowed: always_on, always_off or traceidratio, each also behind parentbased_"),
        };
        match share {
            Ok(share) => values.push((vec!["sampling".to_owned()], text(share, &place(NAME)))),
            Err(says) => self.fault(NAME, says),
        }
    }

    /// Which signals are sent, if the variables say something about it.
    fn signals(&mut self, is_written: bool) -> Option<(Vec<&'static str>, Place)> {
        let everywhere = self.variables.text("OTEL_EXPORTER_OTLP_ENDPOINT").is_ok();
        let (mut names, mut at) = (Vec::new(), None);
        for signal in Signal::ALL {
            let upper = signal.name().to_uppercase();
            let exporter = format!("OTEL_{upper}_EXPORTER");
            let endpoint = format!("OTEL_EXPORTER_OTLP_{upper}_ENDPOINT");
            let own = self.variables.text(&endpoint).is_ok();
            let is_sent = match self.text(&exporter).map(str::trim) {
                Some("otlp") => true,
                Some("none") => false,
                Some("prometheus") if signal == Signal::Metrics => false,
                Some(_) => {
                    let says = "is unknown; allowed: otlp or none, and prometheus for metrics";
                    self.fault(&exporter, says);
                    continue;
                }
                None => is_written || everywhere || own,
            };
            if self.text(&exporter).is_some() {
                at.get_or_insert_with(|| place(&exporter));
            } else if own && !is_written {
                at.get_or_insert_with(|| place(&endpoint));
            }
            if is_sent {
                names.push(signal.name());
            }
        }
        if everywhere && !is_written {
            at.get_or_insert_with(|| place("OTEL_EXPORTER_OTLP_ENDPOINT"));
        }
        at.map(|at| (names, at))
    }

    fn text(&mut self, name: &str) -> Option<&str> {
        match self.variables.text(name) {
            Ok(text) if text.trim().is_empty() => None,
            Ok(text) => Some(text),
            Err(NoText::Unset | NoText::Empty) => None,
            Err(NoText::NotUtf8) => {
                self.faults.push(fault(name, "is not UTF-8"));
                None
            }
        }
    }

    fn fault(&mut self, name: &str, says: &str) {
        self.faults.push(fault(name, says));
    }
}

fn fault(name: &str, message: &str) -> Fault {
    Fault { place: place(name), path: String::new(), message: format!("the value {message}") }
}

fn place(name: &str) -> Place {
    Place::Variable(Arc::from(name))
}

fn text(text: String, place: &Place) -> Node {
    Node { place: place.clone(), value: Value::Text(Scalar { text, quoted: false, origin: Origin::Override }) }
}

/// From the value of a variable to the text of a key.
type Convert = fn(&str) -> Result<String, &'static str>;

#[expect(clippy::unnecessary_wraps, reason = "one of several conversions")]
fn as_it_is(value: &str) -> Result<String, &'static str> {
    Ok(value.trim().to_owned())
}

fn milliseconds(value: &str) -> Result<String, &'static str> {
    match value.trim().parse::<u32>() {
        Ok(number) => Ok(format!("{number}ms")),
        Err(_) => Err("is no whole number of milliseconds"),
    }
}

fn ratio(value: &str) -> Result<String, &'static str> {
    match value.trim().parse::<f64>() {
        // Written out, since a share has no exponent.
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(format!("{}%", share * 100.0)),
        _ => Err("is no share from 0 to 1"),
    }
}

fn child<'a>(node: &'a Node, path: &[&str]) -> Option<&'a Node> {
    let Some((part, rest)) = path.split_first() else { return Some(node) };
    let Value::Map(entries) = &node.value else { return None };
    child(&entries.iter().find(|entry| entry.key == *part)?.node, rest)
}

/// Puts a value where nothing stands. Where a text or a list is in the way, that is reported when it is read.
fn put(node: &mut Node, path: &[&str], new: Node) {
    let Some((part, rest)) = path.split_first() else { return };
    let Value::Map(entries) = &mut node.value else { return };
    let index = entries.iter().position(|entry| entry.key == *part);
    if let Some(index) = index {
        return put(&mut entries[index].node, rest, new);
    }
    let place = new.place.clone();
    let node = match rest {
        [] => new,
        rest => {
            let mut node = Node { place: place.clone(), value: Value::Map(Vec::new()) };
            put(&mut node, rest, new);
            node
        }
    };
    entries.push(Entry { key: (*part).to_owned(), place, node });
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    /// The block as it is after the variables, a line a key.
    fn filled(file: &str, variables: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut root = tree::parse(file).unwrap();
        let faults = fill_in(&mut root, &variables.iter().copied().collect());
        let mut lines = Vec::new();
        if let Some(block) = child(&root, &BLOCK) {
            print(block, "", &mut lines);
        }
        (lines, faults.iter().map(|fault| fault.line("file").to_string()).collect())
    }

    fn print(node: &Node, path: &str, lines: &mut Vec<String>) {
        match &node.value {
            Value::Map(entries) => {
                entries.iter().for_each(|entry| print(&entry.node, &format!("{path}/{}", entry.key), lines));
            }
            Value::List(items) => items.iter().for_each(|item| print(item, path, lines)),
            Value::Text(scalar) => lines.push(format!("{}={}", &path[1..], scalar.text)),
            other => lines.push(format!("{path}={other:?}")),
        }
    }

    #[test]
    fn t1_nothing_asks_for_otlp() {
        for variables in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x"), ("OTEL_BSP_MAX_QUEUE_SIZE", "1")],
            &[("OTEL_TRACES_EXPORTER", "none"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")],
        ] {
            assert_eq!(filled("name: a\n", variables), (vec![], vec![]), "{variables:?}");
        }
    }

    #[test]
    fn t1_what_is_written_wins_and_the_variables_fill_in_the_rest() {
        let file = "telemetry: {otlp: {endpoint: 'http://file:1', headers: {a: file}, traces: {queue: 7}}}\n";
        let (lines, faults) = filled(
            file,
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://variable:1"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "a=variable, b = x%20y"),
                ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://logs:1"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "9"),
                ("OTEL_BLRP_SCHEDULE_DELAY", "50"),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
                ("OTEL_LOGS_EXPORTER", "none"),
                ("OTEL_SERVICE_NAME", "mine"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,zone=z1"),
            ],
        );
        assert_eq!(faults, [] as [&str; 0]);
        assert_eq!(
            lines,
            [
                "endpoint=http://file:1",
                "headers/a=file",
                "headers/b=x y",
                "traces/queue=7",
                "timeout=2500ms",
                "logs/endpoint=http://logs:1",
                "logs/delay=50ms",
                "sampling=25%",
                "resource/service.name=mine",
                "resource/zone=z1",
                "signals=traces",
                "signals=metrics",
            ]
        );
    }

    #[test]
    fn t1_an_endpoint_or_an_exporter_switches_its_signals_on() {
        for (variables, signals) in [
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1")][..], &["traces", "metrics", "logs"][..]),
            (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:1")], &["traces"]),
            (&[("OTEL_METRICS_EXPORTER", "otlp")], &["metrics"]),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:1"), ("OTEL_METRICS_EXPORTER", "prometheus")],
                &["traces", "logs"],
            ),
        ] {
            let (lines, faults) = filled("name: a\n", variables);
            let sent = lines.iter().filter_map(|line| line.strip_prefix("signals=")).collect::<Vec<_>>();
            assert_eq!((sent.as_slice(), faults.len()), (signals, 0), "{variables:?}");
        }
    }

    #[test]
    fn t1_what_makes_no_sense_is_a_fault_and_is_never_shown() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "canary"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "99999999999999"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "canary"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "=canary"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%ff%fecanary"),
            ("OTEL_RESOURCE_ATTRIBUTES", "canary"),
            ("OTEL_TRACES_SAMPLER", "canary"),
            ("OTEL_LOGS_EXPORTER", "canary"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
        ] {
            let (_, faults) = filled("telemetry: {otlp: {}}\n", &[(name, value)]);
            assert_eq!(faults.len(), 1, "{name}={value}");
            assert!(faults[0].starts_with(name) && !faults[0].contains("canary"), "{}", faults[0]);
        }
        let (_, faults) = filled(
            "telemetry: {otlp: {}}\n",
            &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")],
        );
        assert_eq!(faults, ["OTEL_TRACES_SAMPLER_ARG: the value is no share from 0 to 1"]);
    }

    #[test]
    fn only_true_disables() {
        for (value, is) in [("true", true), ("TRUE", true), ("", false), ("1", false), ("false", false)] {
            assert_eq!(is_disabled(&[(DISABLED, value)].into_iter().collect()), is, "{value}");
        }
    }
}
