//! Bars of characters: the used part of a quota, and parts of a whole.

use crate::time::DurationNs;

/// Characters of a whole quota.
const QUOTA: u64 = 10;

/// The used part of the quota; `>` where more was used than a quota, `?` where it was not measured.
pub(super) fn quota(used: Option<DurationNs>, quota: Option<DurationNs>) -> String {
    let Some(used) = used else { return format!("[{}]", "?".repeat(usize::try_from(QUOTA).unwrap_or(0))) };
    let quota = quota.map_or(0, |quota| quota.0);
    let tenths = (used.0 * QUOTA + quota / 2).checked_div(quota).unwrap_or(0);
    let filled = tenths.min(QUOTA);
    let end = if tenths > QUOTA { '>' } else { ']' };
    let mark = |count, with: &str| with.repeat(usize::try_from(count).unwrap_or(0));
    format!("[{}{}{end}", mark(filled, "#"), mark(QUOTA - filled, "."))
}

/// Characters for each part of a whole, `width` together: each has its share rounded down, and those with the largest rests one
/// more. All are 0 of an empty whole.
pub(super) fn parts(parts: &[DurationNs], width: usize) -> Vec<usize> {
    let whole: u128 = parts.iter().map(|part| u128::from(part.0)).sum();
    if whole == 0 {
        return vec![0; parts.len()];
    }
    let scaled: Vec<u128> = parts.iter().map(|part| u128::from(part.0) * width as u128).collect();
    let mut widths: Vec<usize> = scaled.iter().map(|part| usize::try_from(part / whole).unwrap_or(width)).collect();
    let mut by_rest: Vec<usize> = (0..parts.len()).collect();
    by_rest.sort_by_key(|&part| std::cmp::Reverse(scaled[part] % whole));
    let missing = width - widths.iter().sum::<usize>();
    by_rest.into_iter().take(missing).for_each(|part| widths[part] += 1);
    widths
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bar_is_a_quota_wide_and_shows_what_is_above_it() {
        let bar = |used, whole| quota(Some(DurationNs(used)), Some(DurationNs(whole)));
        assert_eq!(bar(0, 20), "[..........]");
        assert_eq!(bar(9, 20), "[#####.....]");
        assert_eq!(bar(20, 20), "[##########]");
        assert_eq!(bar(22, 20), "[##########>");
        assert_eq!(quota(None, Some(DurationNs(20))), "[??????????]");
    }

    proptest! {
        #[test]
        fn parts_fill_the_width_and_none_is_a_character_off(
            lengths in prop::collection::vec(0u64..1_000_000_000_000, 1..8), width in 1usize..200
        ) {
            let lengths: Vec<DurationNs> = lengths.into_iter().map(DurationNs).collect();
            let whole: u64 = lengths.iter().map(|length| length.0).sum();
            prop_assume!(whole > 0);
            let widths = parts(&lengths, width);
            prop_assert_eq!(widths.iter().sum::<usize>(), width);
            for (length, chars) in lengths.iter().zip(widths) {
                let exact = u128::from(length.0) * width as u128;
                let (low, high) = (chars as u128 * u128::from(whole), (chars as u128 + 1) * u128::from(whole));
                prop_assert!(exact < high && exact + u128::from(whole) > low);
            }
        }
    }
}
