//! What a hook said, made fit for a log line and an error: no control characters, no secrets, not too long.
//!
//! Must never let a byte of a hook's output act on a terminal or a log format, nor repeat a secret that this process
//! gave to the hook. Tested by tables below, and with canaries through real hooks in `tests`.

use std::fmt;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// How much of a hook's own words goes into an error: it is kept in records and shown in tables.
pub(super) const ERROR_BYTES_MAX: usize = 2 * 1024;
/// How much of a hook's line for people is kept.
pub(super) const MESSAGE_BYTES_MAX: usize = 512;
/// What stands where a secret stood.
const HIDDEN: &str = "***";
/// Shorter texts are not looked for: to hide every `1` would hide nothing and garble everything.
const SECRET_BYTES_MIN: usize = 4;

/// The secrets that a hook was given, to be taken out of what it says.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

impl Secrets {
    /// Adds a secret; a header's value also without the scheme before it.
    pub(super) fn add(&mut self, secret: &str) {
        let secret = secret.trim();
        for part in [secret, secret.split_once(' ').map_or("", |(_, credentials)| credentials.trim())] {
            if part.len() >= SECRET_BYTES_MIN {
                self.0.push(part.to_owned());
            }
        }
        // A long secret may hold a short one; taken out first, it leaves no rest.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    }

    /// One clean line of at most `max` bytes, with what looks like credentials taken out.
    pub(super) fn clean(&self, text: &str, max: usize) -> String {
        let mut line = printable(text);
        for secret in &self.0 {
            if line.contains(secret.as_str()) {
                line = line.replace(secret.as_str(), HIDDEN);
            }
        }
        cut(hide_credentials(&line), max)
    }
}

/// One line without escape sequences, control and format characters; runs of white space become one space.
pub(super) fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            skip_escape(&mut chars);
        } else if c.is_whitespace() {
            if !line.is_empty() && !line.ends_with(' ') {
                line.push(' ');
            }
        } else if !matches!(c.general_category(), GeneralCategory::Control | GeneralCategory::Format) {
            line.push(c);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// Skips the rest of a terminal's escape sequence: `[`, parameters, one final letter; of any other, the one character
/// after it.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    if chars.next_if_eq(&'[').is_none() {
        chars.next_if(|c| !c.is_control());
        return;
    }
    while chars.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')).is_some() {}
    chars.next_if(|c| matches!(c, '\u{40}'..='\u{7e}'));
}

/// Takes out what stands between `://` and `@`, and what follows `Bearer` or `Basic`.
fn hide_credentials(line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(hide_userinfo).collect();
    let mut hidden = Vec::with_capacity(words.len());
    for (at, word) in words.iter().enumerate() {
        let follows_scheme = at > 0 && is_scheme(&words[at - 1]) && word.len() >= SECRET_BYTES_MIN;
        hidden.push(if follows_scheme { HIDDEN } else { word.as_str() });
    }
    hidden.join(" ")
}

fn is_scheme(word: &str) -> bool {
    let word = word.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    word.eq_ignore_ascii_case("bearer") || word.eq_ignore_ascii_case("basic")
}

fn hide_userinfo(word: &str) -> String {
    let (mut hidden, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once("://") {
        let authority = after.find(['/', '?', '#', '"', '\'', ',']).unwrap_or(after.len());
        let user = after[..authority].rfind('@');
        hidden.push_str(before);
        hidden.push_str("://");
        hidden.push_str(if user.is_some() { HIDDEN } else { "" });
        rest = &after[user.unwrap_or(0)..];
    }
    hidden + rest
}

/// Cuts a text to at most `max` bytes at a character's end, and says that it was cut.
fn cut(mut text: String, max: usize) -> String {
    const MARK: &str = " …";
    if text.len() > max {
        let end = (0..=max.saturating_sub(MARK.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_act_on_a_terminal_is_taken_out() {
        for (raw, wanted) in [
            ("plain words", "plain words"),
            ("\u{1b}[31;1mred\u{1b}[0m text", "red text"),
            ("\u{1b}]0;title\u{7}x", "0;titlex"),
            ("one\r\ntwo\n\n  three\n", "one two three"),
            ("a\0b\u{7f}c\u{202e}d\u{feff}", "abcd"),
            ("\u{1b}", ""),
            ("\u{1b}[", ""),
            ("\u{9b}31m", "31m"),
            ("日本 é", "日本 é"),
        ] {
            assert_eq!(printable(raw), wanted, "{raw:?}");
        }
    }

    #[test]
    fn b87_secrets_and_credentials_are_taken_out() {
        let mut secrets = Secrets::default();
        secrets.add("Bearer canary-1234");
        secrets.add("canary");
        secrets.add("x");
        for (raw, wanted) in [
            ("token canary-1234 refused", "token *** refused"),
            ("Authorization: Bearer canary-1234", "Authorization: ***"),
            ("a canary sings", "a *** sings"),
            ("x marks", "x marks"),
            ("at http://user:pw@host/path and https://u@h", "at http://***@host/path and https://***@h"),
            ("http://host/a@b stays", "http://host/a@b stays"),
            ("header 'Bearer abcdef' and Basic dXNlcg==", "header 'Bearer *** and Basic ***"),
        ] {
            assert_eq!(secrets.clean(raw, 100), wanted);
        }
        assert_eq!(format!("{secrets:?}"), "Secrets(3)");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let cut = Secrets::default().clean(&"é".repeat(100), 21);
        assert_eq!(cut, format!("{} …", "é".repeat(8)));
        assert_eq!(Secrets::default().clean("short", 5), "short");
    }
}
