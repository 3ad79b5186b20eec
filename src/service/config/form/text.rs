//! Names, addresses, paths and secrets.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Form, Wrong};
use crate::service::config::resolved::IdFrom as From_;
use crate::service::config::secret::Secret;
use crate::service::config::tree::Scalar;

/// The longest text that any key takes, in bytes.
const TEXT_BYTES_MAX: usize = 4_096;

/// What is wrong with a text, if anything.
pub(in crate::service::config) type Check = fn(&str) -> Result<(), &'static str>;

/// A text that a function checks.
pub(in crate::service::config) struct Text {
    pub check: Check,
    pub allowed: &'static str,
}

impl Form for Text {
    type Value = String;

    fn parse(&self, scalar: &Scalar) -> Result<String, Wrong> {
        let text = checked(scalar)?;
        match (self.check)(text) {
            Ok(()) => Ok(text.to_owned()),
            // A value behind a name may be a secret.
            Err(says) => Err(Wrong { says: says.to_owned(), hide: text.contains('=') }),
        }
    }

    fn allowed(&self) -> String {
        self.allowed.to_owned()
    }
}

fn checked(scalar: &Scalar) -> Result<&str, Wrong> {
    match scalar.text.as_str() {
        "" => Err("is empty".into()),
        text if text.len() > TEXT_BYTES_MAX => Err("is too long".into()),
        text if text.contains(char::is_control) => Err("holds a control character".into()),
        text => Ok(text),
    }
}

/// A name of a controller or stream: it becomes part of a consumer group, a path, a label.
pub(in crate::service::config) const NAME_BYTES_MAX: usize = 63;

pub(in crate::service::config) fn name(text: &str) -> Result<(), &'static str> {
    match text {
        _ if text.len() > NAME_BYTES_MAX => Err("is too long"),
        _ if !text.starts_with(|c: char| c.is_ascii_alphanumeric()) => Err("does not start with a letter or digit"),
        _ if !text.chars().all(is_name_char) => Err("holds a character that is not allowed"),
        _ => Ok(()),
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A topic, by Kafka's own rules.
pub(in crate::service::config) fn topic(text: &str) -> Result<(), &'static str> {
    match text {
        "." | ".." => Err("is no topic"),
        _ if text.len() > 249 => Err("is too long"),
        _ if !text.chars().all(is_name_char) => Err("holds a character that is not allowed"),
        _ => Ok(()),
    }
}

/// A JSON pointer (RFC 6901).
pub(in crate::service::config) fn pointer(text: &str) -> Result<(), &'static str> {
    if !text.starts_with('/') {
        return Err("does not start with a slash");
    }
    let escapes_are_good = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    if escapes_are_good { Ok(()) } else { Err("has a ~ that is followed by neither 0 nor 1") }
}

/// The name of an environment variable.
pub(in crate::service::config) fn env_name(text: &str) -> Result<(), &'static str> {
    match text {
        _ if text.contains('=') => {
            Err("holds an equals sign; give the name alone, the value comes from the environment")
        }
        _ if text.starts_with(|c: char| c.is_ascii_digit()) => Err("starts with a digit"),
        _ if !text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => {
            Err("holds a character that is not allowed")
        }
        _ => Ok(()),
    }
}

/// Any text at all.
pub(in crate::service::config) fn any(_: &str) -> Result<(), &'static str> {
    Ok(())
}

/// An argument of a command: any text, the empty one too.
pub(in crate::service::config) struct Argument;

impl Form for Argument {
    type Value = String;

    fn parse(&self, scalar: &Scalar) -> Result<String, Wrong> {
        match scalar.text.as_str() {
            text if text.len() > TEXT_BYTES_MAX => Err("is too long".into()),
            text if text.contains('\0') => Err("holds a NUL".into()),
            text => Ok(text.to_owned()),
        }
    }

    fn allowed(&self) -> String {
        "a text".to_owned()
    }

    /// An argument may hold a comma.
    fn is_separable(&self) -> bool {
        false
    }
}

/// The path of a file or folder, relative to the config file.
pub(in crate::service::config) struct FilePath {
    pub what: &'static str,
}

impl Form for FilePath {
    type Value = PathBuf;

    fn parse(&self, scalar: &Scalar) -> Result<PathBuf, Wrong> {
        checked(scalar).map(PathBuf::from)
    }

    fn allowed(&self) -> String {
        format!("the path of {}, relative to this file", self.what)
    }
}

/// A secret; its text is never shown.
pub(in crate::service::config) struct Hidden;

impl Form for Hidden {
    type Value = Secret;

    fn parse(&self, scalar: &Scalar) -> Result<Secret, Wrong> {
        checked(scalar).map(Secret::new).map_err(|wrong| Wrong { hide: true, ..wrong })
    }

    fn allowed(&self) -> String {
        "a secret, as ${NAME} from the environment".to_owned()
    }
}

/// A value that is passed through and may be a secret.
pub(in crate::service::config) struct Opaque;

impl Form for Opaque {
    type Value = Secret;

    fn parse(&self, scalar: &Scalar) -> Result<Secret, Wrong> {
        Hidden.parse(scalar)
    }

    fn allowed(&self) -> String {
        "a text or a number".to_owned()
    }
}

/// An HTTP address. Credentials have no place in it, since addresses are logged.
pub(in crate::service::config) struct HttpUrl {
    /// The key that a user and a password belong to.
    pub login: &'static str,
}

impl Form for HttpUrl {
    type Value = String;

    fn parse(&self, scalar: &Scalar) -> Result<String, Wrong> {
        let hidden = |says: &str| Wrong { says: says.to_owned(), hide: true };
        let text = checked(scalar)?;
        let Ok(url) = reqwest::Url::parse(text) else {
            return Err(if text.contains('@') { hidden("is not a URL") } else { "is not a URL".into() });
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(hidden(&format!("has a user or a password in it; use {}", self.login)));
        }
        match url.scheme() {
            "http" | "https" => Ok(text.to_owned()),
            _ => Err(hidden("is neither http:// nor https://")),
        }
    }

    fn allowed(&self) -> String {
        "an http:// or https:// URL".to_owned()
    }
}

/// The address of a broker.
pub(in crate::service::config) struct Broker;

impl Form for Broker {
    type Value = String;

    fn parse(&self, scalar: &Scalar) -> Result<String, Wrong> {
        let text = checked(scalar)?;
        if text.contains('@') {
            return Err(Wrong { says: "holds an @; user and password belong to sasl".to_owned(), hide: true });
        }
        if text.contains("//") {
            return Err("is a URL".into());
        }
        let (host, port) = text.rsplit_once(':').ok_or("has no port")?;
        let in_brackets = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_host = match in_brackets {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.chars().all(is_name_char),
        };
        if !is_host {
            return Err("has no host name or address".into());
        }
        match port.parse::<u16>() {
            Ok(1..) => Ok(text.to_owned()),
            _ => Err("has no port from 1 to 65535".into()),
        }
    }

    fn allowed(&self) -> String {
        "host:port".to_owned()
    }
}

/// Where to listen.
pub(in crate::service::config) struct Listen;

impl Form for Listen {
    type Value = SocketAddr;

    fn parse(&self, scalar: &Scalar) -> Result<SocketAddr, Wrong> {
        let text = checked(scalar)?;
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        address.parse().map_err(|_| "is no address with a port".into())
    }

    fn allowed(&self) -> String {
        "an IP address and a port, as 127.0.0.1:7070 or [::1]:7070".to_owned()
    }
}

/// Where in a message the id stands.
pub(in crate::service::config) struct IdFrom;

impl Form for IdFrom {
    type Value = From_;

    fn parse(&self, scalar: &Scalar) -> Result<From_, Wrong> {
        match checked(scalar)? {
            "key" => Ok(From_::Key { pointer: None }),
            "value" => Ok(From_::Value { pointer: String::new() }),
            "cloudevent" => Ok(From_::CloudEvent),
            "header" => Err("names no header; write it as: header NAME".into()),
            text => match text.strip_prefix("header ").map(str::trim) {
                Some(name) if !name.is_empty() => Ok(From_::Header { name: name.to_owned() }),
                _ => {
                    let hint = super::nearest(text, ["key", "value", "cloudevent", "header"]);
                    Err(format!("is unknown{}", super::did_you_mean(hint)).into())
                }
            },
        }
    }

    fn allowed(&self) -> String {
        "key, header NAME, value or cloudevent; key and value with a pointer into their JSON".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    #[test]
    fn names_and_addresses_are_checked() {
        for text in ["dns", "a", "my-app.v2_x", &"x".repeat(63)] {
            assert_eq!(name(text), Ok(()), "{text}");
        }
        for text in ["-a", ".a", "a b", "a/b", "é", &"x".repeat(64)] {
            assert!(name(text).is_err(), "{text}");
        }
        for text in ["kafka:9092", "10.0.0.1:9092", "[::1]:9092", "a.b-c:1"] {
            assert_eq!(Broker.parse(&written(text)), Ok(text.to_owned()));
        }
        for text in ["kafka", "kafka:", "kafka:0", "kafka:99999", ":9092", "::1:9092", "http://kafka:9092", "a b:1", ""]
        {
            assert!(Broker.parse(&written(text)).is_err(), "{text}");
        }
        for text in ["/a", "/a/b", "/a~0b~1", "/"] {
            assert_eq!(pointer(text), Ok(()), "{text}");
        }
        for text in ["a", "", "/a~", "/a~2"] {
            assert!(pointer(text).is_err(), "{text}");
        }
        for (text, address) in
            [("localhost:7070", "127.0.0.1:7070"), ("[::1]:1", "[::1]:1"), ("0.0.0.0:0", "0.0.0.0:0")]
        {
            assert_eq!(Listen.parse(&written(text)).unwrap().to_string(), address);
        }
        assert!(Listen.parse(&written(":7070")).is_err());
    }

    #[test]
    fn b87_credentials_in_addresses_are_never_shown() {
        for text in ["http://user:hunter2@host/x", "http://hunter2@host", "http://user:hunter2@", "ftp://hunter2/x"] {
            let wrong = HttpUrl { login: "authorization_file" }.parse(&written(text)).unwrap_err();
            assert!(wrong.hide && !wrong.says.contains("hunter2"), "{text}: {wrong:?}");
        }
        assert!(Broker.parse(&written("user:hunter2@host:9092")).unwrap_err().hide);
    }

    #[test]
    fn k1_ids_come_from_where_the_config_says() {
        let parse = |text| IdFrom.parse(&written(text));
        assert_eq!(parse("key"), Ok(From_::Key { pointer: None }));
        assert_eq!(parse("header ce_subject"), Ok(From_::Header { name: "ce_subject".into() }));
        assert_eq!(parse("cloudevent"), Ok(From_::CloudEvent));
        for text in ["header", "header ", "keys", "Key", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
