//! Values as people type them: lengths of time and rates.
//!
//! Owns the notations. Decimal fractions are read digit by digit, so `0.3s` is 300,000,000 ns and not a neighbour of
//! it.

use crate::client::Spacing;
use crate::time::DurationNs;

/// Longest length of time taken: a year. Sums with any clock then stay far from overflow.
const LONGEST: DurationNs = DurationNs::from_millis(365 * 86_400_000);
/// Units of time with their nanoseconds, longest suffix first.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A value that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ArgError {
    #[error("want a length of time such as 200ms, 1.5s or 60us")]
    NotALength,
    #[error("want a unit as well: ns, us, ms, s, m or h, such as {0}ms")]
    NoUnit(String),
    #[error("finer than a nanosecond")]
    TooFine,
    #[error("longer than a year")]
    TooLong,
    #[error("must be longer than nothing")]
    Empty,
    #[error("want a rate such as 5 or 2.5 (requests a second), at least 0.001 and with at most three decimals")]
    NotARate,
}

/// A length of time such as `200ms`, `1.5s`, `60us`; `0` needs no unit.
pub(super) fn duration(text: &str) -> Result<DurationNs, ArgError> {
    if text == "0" {
        return Ok(DurationNs::ZERO);
    }
    let Some((number, unit_ns)) = UNITS.iter().find_map(|&(unit, ns)| Some((text.strip_suffix(unit)?, ns))) else {
        return Err(match decimal(text, 1) {
            Err(Decimal::Malformed) => ArgError::NotALength,
            _ => ArgError::NoUnit(text.to_owned()),
        });
    };
    let ns = decimal(number, unit_ns).map_err(|error| match error {
        Decimal::Malformed => ArgError::NotALength,
        Decimal::TooFine => ArgError::TooFine,
        Decimal::TooLarge => ArgError::TooLong,
    })?;
    if ns > LONGEST.0 { Err(ArgError::TooLong) } else { Ok(DurationNs(ns)) }
}

/// A length of time that is not zero.
pub(super) fn some_duration(text: &str) -> Result<DurationNs, ArgError> {
    duration(text).and_then(|length| if length == DurationNs::ZERO { Err(ArgError::Empty) } else { Ok(length) })
}

/// The kernel takes periods and bursts in whole microseconds.
pub(super) fn whole_us(flag: &str, length: DurationNs) -> anyhow::Result<u64> {
    anyhow::ensure!(length.0.is_multiple_of(1_000), "{flag} must be a whole number of microseconds");
    Ok(length.0 / 1_000)
}

/// A rate in requests a second, such as `5`, `2.5` or `5/s`.
pub(super) fn rate(text: &str) -> Result<Spacing, ArgError> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    let per_thousand_seconds = decimal(number, 1_000).map_err(|_| ArgError::NotARate)?;
    Spacing::per_thousand_seconds(per_thousand_seconds).ok_or(ArgError::NotARate)
}

/// Why a decimal number of units is none.
#[derive(Debug, PartialEq, Eq)]
enum Decimal {
    Malformed,
    TooFine,
    TooLarge,
}

/// `number` times `unit`, exactly. Digits, then at most one point with digits after it; no sign, no exponent.
fn decimal(number: &str, unit: u64) -> Result<u64, Decimal> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(Decimal::Malformed);
    }
    let (fraction, places) = match fraction.trim_end_matches('0') {
        "" => (0, 0),
        // More places than u64 holds digits: no unit here is so fine.
        long if long.len() > 19 => return Err(Decimal::TooFine),
        fraction => (fraction.parse::<u128>().map_err(|_| Decimal::TooFine)?, fraction.len()),
    };
    let (parts, ten) = (fraction * u128::from(unit), (0..places).fold(1_u128, |power, _| power * 10));
    if parts % ten != 0 {
        return Err(Decimal::TooFine);
    }
    let whole = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(unit));
    let fraction = u64::try_from(parts / ten).ok();
    whole.zip(fraction).and_then(|(whole, fraction)| whole.checked_add(fraction)).ok_or(Decimal::TooLarge)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_are_read_in_every_unit() {
        for (text, ns) in [
            ("0", 0),
            ("0ms", 0),
            ("7ns", 7),
            ("60us", 60_000),
            ("60µs", 60_000),
            ("200ms", 200_000_000),
            ("0.3ms", 300_000),
            ("1.5s", 1_500_000_000),
            ("1.50s", 1_500_000_000),
            ("2m", 120_000_000_000),
            ("0.5m", 30_000_000_000),
            ("0.25h", 900_000_000_000),
            ("365h", 1_314_000_000_000_000),
        ] {
            assert_eq!(duration(text), Ok(DurationNs(ns)), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_is_refused_with_the_reason() {
        for (text, error) in [
            ("", ArgError::NotALength),
            ("ms", ArgError::NotALength),
            ("-5ms", ArgError::NotALength),
            ("1e3ms", ArgError::NotALength),
            ("5 ms", ArgError::NotALength),
            (".5s", ArgError::NotALength),
            ("5.s", ArgError::NotALength),
            ("1.2.3s", ArgError::NotALength),
            ("5days", ArgError::NotALength),
            ("60", ArgError::NoUnit("60".to_owned())),
            ("0.5ns", ArgError::TooFine),
            ("1.0000000001s", ArgError::TooFine),
            ("8761h", ArgError::TooLong),
            ("99999999999999999999s", ArgError::TooLong),
        ] {
            assert_eq!(duration(text), Err(error), "{text}");
        }
        assert_eq!(some_duration("0ms"), Err(ArgError::Empty));
    }

    #[test]
    fn rates_have_three_decimals_and_are_not_zero() {
        assert_eq!(rate("2.5").ok(), Spacing::per_thousand_seconds(2_500));
        assert_eq!(rate("5/s").ok(), Spacing::per_thousand_seconds(5_000));
        for text in ["0", "0.0001", "", "-1", "5/m", "fast"] {
            assert_eq!(rate(text), Err(ArgError::NotARate), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_length_written_in_seconds_is_read_to_the_nanosecond(ns in 0..=LONGEST.0) {
            let text = format!("{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000);
            prop_assert_eq!(duration(&text), Ok(DurationNs(ns)));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,24}") {
            let _ = (duration(&text), rate(&text));
        }
    }
}
