//! Just enough of Rust's grammar for the tidy rules: tokens, the paths that a file names, where its functions begin and
//! end, and what in it is there for tests only.
//!
//! Must never guess from text: comments and literals are told apart first, so that a rule sees code alone.
//! Tested below, on the forms that would fool a search for words.

use std::ops::Range;

/// An identifier, a `::`, a literal (as `"`), a lifetime (as `'`), or one other character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// From 1.
    pub(super) line: usize,
}

/// The code of a file, without comments and the contents of literals.
#[must_use]
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut scanner = Scanner { source, at: 0, line: 1 };
    std::iter::from_fn(|| scanner.next_token()).collect()
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let (rest, line) = (self.rest(), self.line);
        let first = rest.chars().next()?;
        let (text, bytes) = if let Some(bytes) = literal(rest) {
            ("\"", bytes)
        } else if first == '\'' {
            ("'", 1 + word(&rest[1..]))
        } else if is_word(first) {
            let raw = if rest.starts_with("r#") { 2 } else { 0 };
            let bytes = raw + word(&rest[raw..]);
            (&rest[raw..bytes], bytes)
        } else if rest.starts_with("::") {
            ("::", 2)
        } else {
            (&rest[..first.len_utf8()], first.len_utf8())
        };
        self.advance(bytes);
        Some(Token { text, line })
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let bytes = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                block_comment(rest)
            } else {
                rest.len() - rest.trim_start().len()
            };
            if bytes == 0 {
                return;
            }
            self.advance(bytes);
        }
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.rest()[..bytes].matches('\n').count();
        self.at += bytes;
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// How many bytes of `text` are one word.
fn word(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        let step = match rest {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// How many bytes the string or character literal takes that `text` begins with, if it begins with one.
fn literal(text: &str) -> Option<usize> {
    let prefix = word(text);
    let body = &text[prefix..];
    match &text[..prefix] {
        "r" | "br" | "cr" => raw_string(body),
        "" | "b" | "c" if body.starts_with('"') => Some(quoted(body, '"')),
        "" | "b" => character(body),
        _ => None,
    }
    .map(|bytes| prefix + bytes)
}

fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(hashes + 1 + body.find(&end).map_or(body.len(), |at| at + end.len()))
}

/// A character literal, as against a lifetime: it ends with a quote after one character or an escape.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.strip_prefix('\'')?.chars();
    let first = chars.next()?;
    (first == '\\' || chars.next() == Some('\'')).then(|| quoted(text, '\''))
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    text.len()
}

/// A path of at least two names, as code or a `use` spells it; one of a group's for each of its members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Path<'a> {
    pub(super) names: Vec<&'a str>,
    pub(super) line: usize,
    /// Which token it begins at.
    pub(super) token: usize,
}

/// All paths that the tokens name.
#[must_use]
pub(super) fn paths<'a>(tokens: &[Token<'a>]) -> Vec<Path<'a>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let goes_on = at > 1 && tokens[at - 1].text == "::" && continues(tokens[at - 2].text);
        let begins = is_name(tokens[at].text) && !goes_on;
        at = if begins { path_from(tokens, at, &[], &mut found) } else { at + 1 };
    }
    found.retain(|path| path.names.len() > 1);
    found
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c| is_word(c) && !c.is_numeric())
}

fn continues(before_colons: &str) -> bool {
    before_colons == ">" || (is_name(before_colons) && !matches!(before_colons, "use" | "in" | "return" | "as"))
}

/// Reads a path at `at` and puts it, or all members of its group, into `found`; gives back where it ends.
fn path_from<'a>(tokens: &[Token<'a>], at: usize, before: &[&'a str], found: &mut Vec<Path<'a>>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let (mut names, mut here) = (before.to_vec(), at);
    while is_name(text(here)) || text(here) == "*" {
        names.push(tokens[here].text);
        here += 1;
        if text(here) != "::" {
            break;
        }
        here += 1;
        if text(here) == "{" {
            here += 1;
            while !matches!(text(here), "}" | "") {
                let begins = is_name(text(here)) || text(here) == "*";
                here = if begins { path_from(tokens, here, &names, found) } else { here + 1 };
            }
            return here + 1;
        }
    }
    found.push(Path { names, line: tokens[at].line, token: at });
    here
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    /// From the line of `fn` to that of the closing brace.
    pub(super) lines: Range<usize>,
}

impl Function<'_> {
    /// How many lines it takes.
    #[must_use]
    pub(super) fn len(&self) -> usize {
        self.lines.end + 1 - self.lines.start
    }
}

/// All functions of the file, nested ones too.
#[must_use]
pub(super) fn functions<'a>(tokens: &[Token<'a>]) -> Vec<Function<'a>> {
    let mut found = Vec::new();
    for at in 0..tokens.len().saturating_sub(1) {
        let (here, name) = (tokens[at], tokens[at + 1].text);
        if here.text != "fn" || !is_name(name) {
            continue;
        }
        if let Some(end) = item_end(tokens, at).filter(|&end| tokens[end].text == "}") {
            found.push(Function { name, lines: here.line..tokens[end].line });
        }
    }
    found
}

/// The token that ends the item which begins at `at`: its closing brace, or the semicolon of one without a body.
fn item_end(tokens: &[Token<'_>], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (offset, token) in tokens[at..].iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" if depth <= 1 => return Some(at + offset),
            "}" => depth -= 1,
            ";" if depth == 0 => return Some(at + offset),
            _ => {}
        }
    }
    None
}

/// The tokens of items that exist for tests only: those behind `#[cfg(test)]`, the attribute included.
#[must_use]
pub(super) fn test_items(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut found: Vec<Range<usize>> = Vec::new();
    for at in 0..tokens.len() {
        let marked = tokens[at..].iter().map(|token| token.text).take(MARK.len()).eq(MARK);
        if marked && found.last().is_none_or(|before| before.end <= at) {
            let end = item_end(tokens, at + MARK.len()).map_or(tokens.len(), |end| end + 1);
            found.push(at..end);
        }
    }
    found
}

/// For each token, in how many inline modules it stands.
#[must_use]
pub(super) fn inline_depths(tokens: &[Token<'_>]) -> Vec<usize> {
    let mut depths = vec![0; tokens.len()];
    for at in 2..tokens.len() {
        if tokens[at].text == "{" && tokens[at - 2].text == "mod" {
            let end = item_end(tokens, at).unwrap_or(tokens.len());
            depths[at..end].iter_mut().for_each(|depth| *depth += 1);
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(texts("a // b\nc /* d /* e */ f */ g"), ["a", "c", "g"]);
        assert_eq!(
            texts(r##"x("a\"b", r#"c " d"#, b"e", br"f\", c"g", 'h', '\'', b'\\', '{')"##).concat(),
            "x(\",\",\",\",\",\",\",\",\")"
        );
        assert_eq!(texts("&'a str; 'outer: loop {} r#fn"), ["&", "'", "str", ";", "'", ":", "loop", "{", "}", "fn"]);
        assert_eq!(tokens("a\n\"b\nc\"\nd").last(), Some(&Token { text: "d", line: 4 }));
    }

    #[test]
    fn groups_are_paths_of_their_members() {
        let source =
            "use crate::{a::{B, c::*}, d}; fn f(x: ::std::io::Error) { <T as crate::e::F>::g(Vec::<u8>::new()) }";
        let tokens = tokens(source);
        let named: Vec<_> = paths(&tokens).iter().map(|path| path.names.join("::")).collect();
        assert_eq!(named, ["crate::a::B", "crate::a::c::*", "crate::d", "std::io::Error", "crate::e::F"]);
    }

    #[test]
    fn functions_end_at_their_own_brace() {
        let source =
            "trait T { fn a(&self) -> [u8; 4]; }\nfn b<F>(f: fn(u8))\nwhere F: Fn() {\n  if x { y() }\n}\nfn c() {}";
        let tokens = tokens(source);
        let found: Vec<_> = functions(&tokens).into_iter().map(|f| (f.name, f.len())).collect();
        assert_eq!(found, [("b", 4), ("c", 1)]);
    }

    #[test]
    fn test_items_are_found_whole() {
        let source = "a;\n#[cfg(test)]\nmod tests { mod deep { x } }\nb;\n#[cfg(test)]\n#[derive(Debug)]\nstruct C;\nd";
        let tokens = tokens(source);
        let inside: Vec<_> = test_items(&tokens).into_iter().map(|range| (range.start, range.end)).collect();
        assert_eq!(inside.iter().map(|r| tokens[r.1].text).collect::<Vec<_>>(), ["b", "d"]);
        let x = tokens.iter().position(|token| token.text == "x").unwrap();
        assert_eq!(inline_depths(&tokens)[x], 2);
    }
}
