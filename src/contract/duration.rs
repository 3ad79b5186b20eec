//! Durations as people write them, in the config and in what reconcilers answer: a number and a unit, `250ms`.
//!
//! Must never guess a unit or round: what is not exactly a duration is refused (I2, D9).
//! Tested by the tables below.

use std::time::Duration;

/// The longest duration that anybody may ask for: far beyond any sense, far from any overflow.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The units and their nanoseconds.
const UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Digits after the point beyond which nothing but nanoseconds of days could be meant.
const FRACTION_DIGITS_MAX: usize = 18;

/// Why a text is no duration. The message fits behind the text or the name of the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// A number alone; seconds or milliseconds, nobody knows.
    #[error("has no unit; write it as 250ms, 10s, 5m, 2h or 1d")]
    NoUnit,
    /// Another unit.
    #[error("has an unknown unit; the units are ns, us, ms, s, m, h and d")]
    Unit,
    /// Below zero.
    #[error("is negative")]
    Negative,
    /// More than [`DURATION_MAX`].
    #[error("is longer than 365d")]
    TooLong,
    /// Nothing of the kind.
    #[error("is not a duration; write it as 250ms, 10s, 5m, 2h or 1d")]
    Malformed,
}

/// Reads a duration: a decimal number and one of the units ns, us, ms, s, m, h, d, without a space.
///
/// # Errors
/// Anything else, exponents, `inf` and more than 365 d included.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = !whole.is_empty() && !fraction.is_empty() && !fraction.contains('.');
    if !is_number || fraction.len() > FRACTION_DIGITS_MAX {
        return Err(DurationError::Malformed);
    }
    if unit.is_empty() {
        return Err(DurationError::NoUnit);
    }
    let (_, unit_nanos) = *UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(|| unit_error(unit))?;
    if negative {
        return Err(DurationError::Negative);
    }
    let nanos = nanos_of(whole, fraction, unit_nanos).ok_or(DurationError::TooLong)?;
    if nanos > DURATION_MAX.as_nanos() {
        return Err(DurationError::TooLong);
    }
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::TooLong)
}

/// A word after the number may be meant as a unit; anything with a digit or a space is something else.
fn unit_error(unit: &str) -> DurationError {
    if unit.chars().all(char::is_alphabetic) { DurationError::Unit } else { DurationError::Malformed }
}

fn nanos_of(whole: &str, fraction: &str, unit_nanos: u128) -> Option<u128> {
    let whole = whole.parse::<u128>().ok()?.checked_mul(unit_nanos)?;
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = fraction.parse::<u128>().ok()?.checked_mul(unit_nanos)? / scale;
    whole.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_reads_numbers_with_a_unit() {
        for (text, nanos) in [
            ("0s", 0),
            ("1ns", 1),
            ("7us", 7_000),
            ("250ms", 250_000_000),
            ("10s", 10_000_000_000),
            ("1.5s", 1_500_000_000),
            ("0.001s", 1_000_000),
            ("5m", 300_000_000_000),
            ("2h", 7_200_000_000_000),
            ("365d", 31_536_000_000_000_000),
            ("0.5ns", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn d9_refuses_the_rest() {
        use DurationError::{Malformed, Negative, NoUnit, TooLong, Unit};
        let huge = format!("{}s", "9".repeat(60));
        for (text, error) in [
            ("", Malformed),
            ("s", Malformed),
            (".5s", Malformed),
            ("5.s", Malformed),
            ("1.2.3s", Malformed),
            ("5", NoUnit),
            ("90", NoUnit),
            ("1.5", NoUnit),
            ("-5", NoUnit),
            ("-5s", Negative),
            ("1e3s", Malformed),
            ("1e400", Malformed),
            ("NaN", Malformed),
            ("inf", Malformed),
            ("5 s", Malformed),
            ("5 minutes", Malformed),
            (" 5s", Malformed),
            ("1h30m", Malformed),
            ("5x", Unit),
            ("5S", Unit),
            ("5min", Unit),
            ("366d", TooLong),
            ("365.000001d", TooLong),
            ("999999999999h", TooLong),
            (huge.as_str(), TooLong),
        ] {
            assert_eq!(parse_duration(text), Err(error), "{text}");
        }
    }
}
