//! Text that becomes HTML: escaped, bounded, in people's units.
//!
//! Must never write anything from outside but through [`Text`]. Tested below and in a browser.

use std::fmt::{self, Write as _};
use std::time::Duration;

use jiff::Timestamp;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory as _};

/// The most characters shown of an error: three lines.
const TEXT_CHARS_MAX: usize = 300;

/// Text from outside: markup is escaped, what steers a terminal or turns the reading direction becomes visible, and
/// what is too long is cut.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, c) in self.0.chars().enumerate() {
            if at == TEXT_CHARS_MAX {
                return f.write_char('…');
            }
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(' ')?,
                c => match c.general_category() {
                    GeneralCategory::Control | GeneralCategory::Format => f.write_char('\u{fffd}')?,
                    _ => f.write_char(c)?,
                },
            }
        }
        Ok(())
    }
}

/// A whole number with its thousands apart.
pub(super) struct Count(pub(super) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_char(',')?;
            }
            f.write_char(digit)?;
        }
        Ok(())
    }
}

/// A length of time in its largest sensible unit.
pub(super) struct Span(pub(super) f64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = if self.0.is_finite() { self.0.max(0.0) } else { 0.0 };
        match seconds {
            s if s < 0.000_95 => write!(f, "{:.0} µs", s * 1e6),
            s if s < 0.95 => write!(f, "{:.0} ms", s * 1e3),
            s if s < 9.95 => write!(f, "{s:.1} s"),
            s if s < 120.0 => write!(f, "{s:.0} s"),
            s if s < 7_200.0 => write!(f, "{:.0} min", s / 60.0),
            s if s < 172_800.0 => write!(f, "{:.0} h", s / 3_600.0),
            s => write!(f, "{:.0} d", s / 86_400.0),
        }
    }
}

/// How long ago something was, with the exact time for machines and for a pointer that rests on it.
pub(super) fn ago(now: Timestamp, then: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs_f64();
    let text = if seconds >= 0.0 { format!("{} ago", Span(seconds)) } else { format!("in {}", Span(-seconds)) };
    time(then, &text)
}

/// A time, as text for people.
pub(super) fn time(at: Timestamp, text: &str) -> String {
    format!("<time datetime=\"{at}\" title=\"{at}\">{text}</time>")
}

/// The time of day in UTC, to the second.
pub(super) fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    time(at, text.get(11..19).unwrap_or(&text))
}

/// How long this took, as [`Span`] says it.
pub(super) fn span(duration: Duration) -> Span {
    Span(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_controls_and_directions_are_text() {
        let hostile = "<script>a&b</script>\" onload='x'\u{1b}[2J\u{202e}gnp\n.";
        assert_eq!(
            Text(hostile).to_string(),
            "&lt;script&gt;a&amp;b&lt;/script&gt;&quot; onload=&#39;x&#39;\u{fffd}[2J\u{fffd}gnp ."
        );
        assert_eq!(Text(&"ä".repeat(5_000)).to_string().chars().count(), TEXT_CHARS_MAX + 1);
    }

    #[test]
    fn numbers_and_times_are_readable() {
        let counts: Vec<_> = [0, 999, 1_000, 1_234_567].map(|count| Count(count).to_string()).into();
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let spans: Vec<_> = [0.0, 0.000_4, 0.031, 0.97, 59.6, 130.0, 7_300.0, 1e6, -1.0, f64::NAN]
            .map(|seconds| Span(seconds).to_string())
            .into();
        assert_eq!(spans, ["0 µs", "400 µs", "31 ms", "1.0 s", "60 s", "2 min", "2 h", "12 d", "0 µs", "0 µs"]);
        let (then, now) = ("2030-02-03T11:00:00Z".parse().unwrap(), "2030-02-03T11:00:31Z".parse().unwrap());
        assert!(ago(now, then).ends_with(">31 s ago</time>") && ago(then, now).ends_with(">in 31 s</time>"));
        assert!(clock(now).ends_with(">11:00:31</time>"));
    }
}
