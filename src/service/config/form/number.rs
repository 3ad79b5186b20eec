//! Numbers, durations and shares. Zero is never "off", and never "the default" (I2).

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Form, Wrong};
use crate::contract::{DurationError, parse_duration};
use crate::service::config::tree::Scalar;

const IN_QUOTES: &str = "is a text, since it stands in quotes";

/// A whole number, never 0.
pub(in crate::service::config) struct Number {
    pub min: u32,
    pub max: u32,
}

impl Form for Number {
    type Value = NonZeroU32;

    fn parse(&self, scalar: &Scalar) -> Result<NonZeroU32, Wrong> {
        let digits = scalar.text.strip_prefix('-').unwrap_or(&scalar.text);
        if scalar.quoted {
            return Err(IN_QUOTES.into());
        }
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err("is not a whole number".into());
        }
        if digits.len() < scalar.text.len() {
            return Err("is negative".into());
        }
        match digits.parse::<u32>() {
            Ok(n) if n < self.min => Err("is too small".into()),
            Ok(n) if n <= self.max => NonZeroU32::new(n).ok_or_else(|| "is too small".into()),
            _ => Err("is too large".into()),
        }
    }

    fn allowed(&self) -> String {
        format!("{} to {}", self.min, self.max)
    }
}

/// A factor, perhaps with a fraction.
pub(in crate::service::config) struct Decimal {
    pub min: f64,
    pub max: f64,
}

impl Form for Decimal {
    type Value = f64;

    fn parse(&self, scalar: &Scalar) -> Result<f64, Wrong> {
        if scalar.quoted {
            return Err(IN_QUOTES.into());
        }
        let number = plain_decimal(&scalar.text).ok_or("is not a decimal number")?;
        within(number, self.min, self.max)
    }

    fn allowed(&self) -> String {
        format!("a decimal number from {} to {}", self.min, self.max)
    }
}

/// A share with a percent sign; its value is from 0 to 1.
pub(in crate::service::config) struct Percent {
    pub max: f64,
}

impl Form for Percent {
    type Value = f64;

    fn parse(&self, scalar: &Scalar) -> Result<f64, Wrong> {
        let number = scalar.text.strip_suffix('%').ok_or("has no percent sign")?;
        let number = plain_decimal(number).ok_or("is not a share")?;
        within(number, 0.0, self.max).map(|percent| percent / 100.0)
    }

    fn allowed(&self) -> String {
        format!("0% to {}%", self.max)
    }
}

/// Digits with at most one point: no exponent, no infinity.
fn plain_decimal(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_plain = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.ends_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    is_plain.then(|| text.parse().ok()).flatten()
}

fn within(number: f64, min: f64, max: f64) -> Result<f64, Wrong> {
    match number {
        n if n < 0.0 => Err("is negative".into()),
        n if n < min => Err("is too small".into()),
        n if n <= max => Ok(n),
        _ => Err("is too large".into()),
    }
}

/// A duration.
pub(in crate::service::config) struct Span {
    pub min: Duration,
    pub max: Duration,
}

impl Form for Span {
    type Value = Duration;

    fn parse(&self, scalar: &Scalar) -> Result<Duration, Wrong> {
        match parse_duration(&scalar.text) {
            Err(error) => Err(duration_wrong(&error).into()),
            Ok(d) if d < self.min => Err("is too short".into()),
            Ok(d) if d <= self.max => Ok(d),
            Ok(_) => Err("is too long".into()),
        }
    }

    fn allowed(&self) -> String {
        format!("{} to {}", show_duration(self.min), show_duration(self.max))
    }
}

/// What is wrong, without the text itself: it may have come from the environment, where secrets live.
fn duration_wrong(error: &DurationError) -> &'static str {
    match error {
        DurationError::Empty => "is empty",
        DurationError::Negative(_) => "is negative",
        DurationError::NoUnit(_) => "has no unit; write it as 250ms, 10s, 5m, 2h or 1h30m",
        DurationError::Unit(..) => "has an unknown unit; the units are ns, us, ms, s, m, h and d, the larger first",
        DurationError::Overflow(_) => "is too long",
        _ => "is not a duration; write it as 250ms, 10s, 5m, 2h or 1h30m",
    }
}

/// A duration as people write it, in the largest unit that needs no fraction.
pub(in crate::service::config) fn show_duration(duration: Duration) -> String {
    const UNITS: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let nanos = duration.as_nanos();
    let unit = UNITS.iter().find(|(size, _)| nanos >= *size && nanos.is_multiple_of(*size));
    unit.map_or_else(|| "0s".to_owned(), |(size, name)| format!("{}{name}", nanos / size))
}

#[cfg(test)]
mod tests {
    use super::super::written;
    use super::*;

    #[test]
    fn i2_numbers_are_exact_and_bounded() {
        let form = Number { min: 1, max: 4096 };
        assert_eq!(form.parse(&written("4096")).map(u32::from), Ok(4096));
        for (text, says) in [
            ("0", "is too small"),
            ("4097", "is too large"),
            ("1000000000", "is too large"),
            ("99999999999999999999999", "is too large"),
            ("-1", "is negative"),
            ("3.7", "is not a whole number"),
            ("1e3", "is not a whole number"),
            ("0x10", "is not a whole number"),
            ("+5", "is not a whole number"),
            ("many", "is not a whole number"),
            ("", "is not a whole number"),
        ] {
            assert_eq!(form.parse(&written(text)).map(u32::from), Err(says.into()), "{text}");
        }
        let quoted = Scalar { quoted: true, ..written("12") };
        assert_eq!(form.parse(&quoted), Err("is a text, since it stands in quotes".into()));
    }

    #[test]
    fn i2_factors_and_shares_are_plain_numbers() {
        let factor = Decimal { min: 1.0, max: 100.0 };
        let share = Percent { max: 100.0 };
        assert_eq!(factor.parse(&written("1.5")), Ok(1.5));
        assert_eq!(share.parse(&written("12.5%")), Ok(0.125));
        assert_eq!(share.parse(&written("0%")), Ok(0.0));
        for text in ["NaN", "inf", "1e400", "1e2", "", ".5", "1.", "1.2.3", "-", "--1"] {
            assert_eq!(factor.parse(&written(text)), Err("is not a decimal number".into()), "{text}");
            assert_eq!(share.parse(&written(&format!("{text}%"))), Err("is not a share".into()), "{text}");
        }
        assert_eq!(factor.parse(&written("0.5")), Err("is too small".into()));
        assert_eq!(factor.parse(&written("-2")), Err("is negative".into()));
        assert_eq!(share.parse(&written("20")), Err("has no percent sign".into()));
        assert_eq!(share.parse(&written("101%")), Err("is too large".into()));
    }

    #[test]
    fn b86_durations_have_units_and_bounds() {
        let form = Span { min: Duration::from_millis(1), max: Duration::from_secs(3_600) };
        assert_eq!(form.parse(&written("1m")), Ok(Duration::from_secs(60)));
        assert_eq!(form.parse(&written("0s")), Err("is too short".into()));
        assert_eq!(form.parse(&written("2h")), Err("is too long".into()));
        assert!(form.parse(&written("90")).unwrap_err().says.starts_with("has no unit"));
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for text in ["250ms", "10s", "90s", "5m", "1h", "365d", "1500ms", "7us", "3ns", "0s"] {
            assert_eq!(show_duration(parse_duration(text).unwrap()), text);
        }
    }
}
