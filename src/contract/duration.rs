//! Durations as people and reconcilers write them: a number with a unit, as in `30s`, `1.5h` or `1h30m` (I2, D9).
//!
//! Must never panic, guess a unit, or turn a bad text into zero. Tested by tables and by random texts below.

use std::time::Duration;

/// The longest duration; a longer one is cut to it. A wish beyond a year is a slip, and every clock can add a year
/// without overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How much of a bad text is repeated in a message, in characters: enough to find it, not enough to flood a log.
const SHOWN_CHARS: usize = 40;

/// How many digits of a fraction count; more cannot be told apart in nanoseconds of the longest unit.
const FRACTION_DIGITS: usize = 18;

/// The units with their length in nanoseconds. `µs` in both of its spellings is what Go prints.
const UNITS: [(&str, u128); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 60 * 60 * 1_000_000_000),
    ("d", 24 * 60 * 60 * 1_000_000_000),
];

/// Why a text is no duration. The message says what is wrong and how to write it; the caller says which field it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// Nothing is there.
    #[error("a duration is empty; write a number with a unit (ns, us, ms, s, m, h, d), as in 30s or 1h30m")]
    Empty,
    /// Below zero.
    #[error("{0:?} is negative; a duration is 0s or more")]
    Negative(String),
    /// Not a number where one must be: NaN, an infinity, two points, a sign.
    #[error("{0:?} is not a number with a unit; write one like 30s, 1.5h or 1h30m (units: ns, us, ms, s, m, h, d)")]
    NotANumber(String),
    /// A number without a unit.
    #[error("{0:?} has no unit; write one like 30s or 5m (units: ns, us, ms, s, m, h, d)")]
    NoUnit(String),
    /// A unit that is not known, or a smaller one before a larger one.
    #[error("{1:?} in {0:?} is not a unit that can stand there; units are ns, us, ms, s, m, h, d, the larger first")]
    Unit(String, String),
    /// More than any clock can count.
    #[error("{0:?} is larger than any clock can count; at most 365d are used")]
    Overflow(String),
}

/// Reads a duration: numbers with units, the larger unit first, decimals allowed: `250ms`, `1.5h`, `1h30m`. Fractions
/// of a nanosecond are rounded up, so that a time is never early; more than [`DURATION_MAX`] is cut to it. Zero is a
/// duration: whether it makes sense is the caller's to say.
///
/// # Errors
/// The first thing that is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    if text.is_empty() {
        return Err(DurationError::Empty);
    }
    if text.starts_with('-') {
        return Err(DurationError::Negative(shown(text)));
    }
    let (mut rest, mut nanos, mut largest) = (text, 0_u128, u128::MAX);
    while !rest.is_empty() {
        let (number, after) = split_at(rest, |c| !is_numeric(c));
        let (unit, after) = split_at(after, is_numeric);
        if number.is_empty() {
            return Err(DurationError::NotANumber(shown(text)));
        }
        if unit.is_empty() {
            return Err(DurationError::NoUnit(shown(text)));
        }
        let length = UNITS.iter().find(|(name, length)| *name == unit && *length < largest).map(|(_, length)| *length);
        largest = length.ok_or_else(|| DurationError::Unit(shown(text), shown(unit)))?;
        nanos += term(number, largest).map_err(|wrong| wrong(shown(text)))?;
        rest = after;
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| DurationError::Overflow(shown(text)))?;
    let nanos = u32::try_from(nanos % 1_000_000_000).unwrap_or(0);
    Ok(Duration::new(seconds, nanos).min(DURATION_MAX))
}

/// One number times its unit, in nanoseconds rounded up.
fn term(number: &str, unit: u128) -> Result<u128, fn(String) -> DurationError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(DurationError::NotANumber);
    }
    // A u64 of the longest unit fits a u128 of nanoseconds with room for a sum over all units.
    let whole = u128::from(whole.parse::<u64>().map_err(|_| DurationError::Overflow as fn(String) -> DurationError)?);
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let scale = kept.bytes().fold(1_u128, |scale, _| scale * 10);
    let part = kept.bytes().fold(0_u128, |value, digit| value * 10 + u128::from(digit - b'0'));
    Ok(whole * unit + (part * unit).div_ceil(scale))
}

fn is_numeric(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

fn split_at(text: &str, end: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(end).unwrap_or(text.len()))
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn i2_durations_are_read_with_their_units() {
        let ms = Duration::from_millis;
        for (text, wanted) in [
            ("30s", ms(30_000)),
            ("0s", ms(0)),
            ("250ms", ms(250)),
            ("1.5h", ms(5_400_000)),
            ("1h30m", ms(5_400_000)),
            ("1h0m0.5s", ms(3_600_500)),
            ("2d", ms(172_800_000)),
            ("7ns", Duration::from_nanos(7)),
            ("7us", Duration::from_micros(7)),
            ("7\u{b5}s", Duration::from_micros(7)),
            ("7\u{3bc}s", Duration::from_micros(7)),
            ("0.1ns", Duration::from_nanos(1)),
            ("365d", DURATION_MAX),
            ("36500d", DURATION_MAX),
            ("18446744073709551615s", DURATION_MAX),
        ] {
            assert_eq!(parse_duration(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn b45_bad_durations_are_refused_and_never_zero() {
        use DurationError as E;
        let text = String::from;
        for (bad, wanted) in [
            ("", E::Empty),
            ("-5s", E::Negative(text("-5s"))),
            ("-0s", E::Negative(text("-0s"))),
            ("30", E::NoUnit(text("30"))),
            ("0", E::NoUnit(text("0"))),
            ("1s30", E::NoUnit(text("1s30"))),
            ("NaN", E::NotANumber(text("NaN"))),
            ("inf", E::NotANumber(text("inf"))),
            ("s", E::NotANumber(text("s"))),
            ("+5s", E::NotANumber(text("+5s"))),
            (".5s", E::NotANumber(text(".5s"))),
            ("5.s", E::NotANumber(text("5.s"))),
            ("1.2.3s", E::NotANumber(text("1.2.3s"))),
            ("1e308", E::Unit(text("1e308"), text("e"))),
            ("1e6s", E::Unit(text("1e6s"), text("e"))),
            ("5 minutes", E::Unit(text("5 minutes"), text(" minutes"))),
            ("5 s", E::Unit(text("5 s"), text(" s"))),
            ("5s ", E::Unit(text("5s "), text("s "))),
            ("5S", E::Unit(text("5S"), text("S"))),
            ("1m1h", E::Unit(text("1m1h"), text("h"))),
            ("1s1s", E::Unit(text("1s1s"), text("s"))),
            ("18446744073709551616s", E::Overflow(text("18446744073709551616s"))),
            ("18446744073709551615d", E::Overflow(text("18446744073709551615d"))),
        ] {
            assert_eq!(parse_duration(bad), Err(wanted), "{bad:?}");
        }
    }

    #[test]
    fn a_long_bad_text_does_not_flood_the_message() {
        let message = parse_duration(&"9".repeat(100_000)).unwrap_err().to_string();
        assert!(message.len() < 200, "{message}");
    }

    proptest! {
        #[test]
        fn i2_no_text_makes_it_panic_and_what_is_read_fits(text in "\\PC{0,24}|[0-9.]{0,30}(ns|us|ms|s|m|h|d)?") {
            if let Ok(duration) = parse_duration(&text) {
                prop_assert!(duration <= DURATION_MAX);
            }
        }

        #[test]
        fn i2_whole_milliseconds_come_back(millis in 0_u64..30_000_000_000) {
            prop_assert_eq!(parse_duration(&format!("{millis}ms")), Ok(Duration::from_millis(millis)));
        }
    }
}
