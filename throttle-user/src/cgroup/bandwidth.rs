//! Quota, period and burst of a group: read, and written in an order the kernel accepts at every step.
//!
//! Owns the values, and reading and writing them in the files of both versions. The order of the writes is
//! [`super::steps`]'; what limits people write is [`super::limit`]'s.

use std::cmp::Ordering;
use std::{fmt, io};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::group::{Group, GroupError};
use super::hierarchy::Version;
use super::limit::{DEFAULT_PERIOD_US, LimitError, MAX_PERIOD_US, MIN_US};
use super::steps::{self, V1_BURST, V1_PERIOD, V1_QUOTA, V2_BURST, V2_MAX};

/// CPU time a group may use per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quota {
    /// No quota: `-1` on v1, `max` on v2.
    Unlimited,
    /// Microseconds of CPU per period.
    Us(u64),
}

/// The CFS bandwidth of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bandwidth {
    /// CPU time per period.
    pub quota: Quota,
    /// Length of the period, us.
    pub period_us: u64,
    /// How much unused quota may be kept for later periods, us. Also 0 where the kernel (before 5.14) has no burst.
    pub burst_us: u64,
}

/// A bandwidth could not be set.
#[derive(Debug, thiserror::Error)]
pub enum BandwidthError {
    /// The values themselves are out of range.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A file could not be read or written.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The group has no bandwidth files.
    #[error(
        "cgroup {group} has no quota to set: it is the root of its hierarchy, cpu is not in its parent's cgroup.subtree_control, or \
         the kernel lacks CONFIG_CFS_BANDWIDTH"
    )]
    NoFiles {
        /// The group.
        group: String,
    },
    /// The kernel has no burst.
    #[error(
        "cgroup {group} has no file for a burst of {burst_us} us: burst needs Linux 5.14 or later; leave it out on this kernel"
    )]
    NoBurst {
        /// The group.
        group: String,
        /// The burst asked for, us.
        burst_us: u64,
    },
    /// The kernel refused the combination (`EINVAL`).
    #[error("the kernel refuses {want} for cgroup {group}{}", nested_remedy(parent.as_ref()))]
    Refused {
        /// The group.
        group: String,
        /// What was asked for.
        want: Bandwidth,
        /// What the parent allows, where that could be read.
        parent: Option<Bandwidth>,
        /// The refusal.
        #[source]
        source: io::Error,
    },
    /// The values read back differ from those written.
    #[error(
        "cgroup {group} was given {want} but now has {got}; is another program (systemd, a kubelet) setting the same group?"
    )]
    NotTaken {
        /// The group.
        group: String,
        /// What was written.
        want: Bandwidth,
        /// What was read back.
        got: Bandwidth,
    },
}

impl Quota {
    /// Microseconds per period, or `None` without a quota.
    #[must_use]
    pub fn us(self) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Us(us) => Some(us),
        }
    }
}

impl Bandwidth {
    /// What a new group has: no quota, a period of 100 ms.
    pub const UNLIMITED: Self = Self { quota: Quota::Unlimited, period_us: DEFAULT_PERIOD_US, burst_us: 0 };

    /// The same values if the kernel would take them for a group without limited ancestors (`tg_set_cfs_bandwidth`).
    ///
    /// # Errors
    /// The first [`LimitError`] that applies.
    pub fn checked(self) -> Result<Self, LimitError> {
        let Self { quota, period_us, burst_us } = self;
        if !(MIN_US..=MAX_PERIOD_US).contains(&period_us) {
            return Err(LimitError::Period { period_us });
        }
        match quota {
            Quota::Us(quota_us) if quota_us < MIN_US => Err(LimitError::Quota { quota_us, period_us }),
            Quota::Us(quota_us) if burst_us > quota_us => Err(LimitError::Burst { burst_us, quota_us }),
            Quota::Unlimited if burst_us > 0 => Err(LimitError::BurstWithoutLimit { burst_us }),
            Quota::Us(_) | Quota::Unlimited => Ok(self),
        }
    }

    /// What `group` has now; `None` where it has no such files (the v2 root, or cpu not enabled for it).
    ///
    /// # Errors
    /// [`GroupError`] when the group is gone, unreadable, or holds other text than the kernel writes.
    pub fn read(group: &Group) -> Result<Option<Self>, GroupError> {
        let (quota_file, burst_file) = match group.version() {
            Version::V1 => (V1_QUOTA, V1_BURST),
            Version::V2 => (V2_MAX, V2_BURST),
        };
        let Some(text) = group.read_if_there(quota_file)? else { return Ok(None) };
        let odd = |file: &str, text: &str, expected| GroupError::Odd {
            path: group.path().join(file),
            text: text.to_owned(),
            expected,
        };
        let number =
            |file: &str, text: &str| text.trim_end().parse().map_err(|_| odd(file, text, "a number of microseconds"));
        let (quota, period_us) = match group.version() {
            Version::V1 => (
                parse_v1_quota(&text).ok_or_else(|| odd(quota_file, &text, "-1 or a number of microseconds"))?,
                number(V1_PERIOD, &group.read(V1_PERIOD)?)?,
            ),
            Version::V2 => parse_v2_max(&text)
                .ok_or_else(|| odd(quota_file, &text, "`max` or a quota, and a period, in microseconds"))?,
        };
        let burst_us = match group.read_if_there(burst_file)? {
            Some(text) => number(burst_file, &text)?,
            None => 0,
        };
        Ok(Some(Self { quota, period_us, burst_us }))
    }

    /// Gives `group` these values, and reads them back. What already has the wanted value is not written, because any write, also of
    /// the same value, refills the group's budget and ends its throttles (`tg_set_cfs_bandwidth`).
    ///
    /// When quota and period both change on v1, the group may be without a quota between two writes.
    ///
    /// # Errors
    /// [`BandwidthError`]; the group may then be left between the old and the new values.
    pub fn write(self, group: &Group) -> Result<(), BandwidthError> {
        let want = self.checked()?;
        let name = || group.path().display().to_string();
        let now = Self::read(group)?.ok_or_else(|| BandwidthError::NoFiles { group: name() })?;
        for step in steps::plan(group.version(), &now, &want) {
            let (file, value) = step.file_and_value();
            if step.is_burst() && group.read_if_there(file)?.is_none() {
                return Err(BandwidthError::NoBurst { group: name(), burst_us: want.burst_us });
            }
            group.write(file, &value).map_err(|error| match error {
                GroupError::Write { source, .. } if source.raw_os_error() == Some(Errno::EINVAL as i32) => {
                    let parent = group.path().parent().map(|path| Group::new(group.version(), path.to_owned()));
                    let parent = parent.and_then(|parent| Self::read(&parent).ok().flatten());
                    BandwidthError::Refused { group: name(), want, parent, source }
                }
                other => other.into(),
            })?;
        }
        match Self::read(group)? {
            Some(got) if got == want => Ok(()),
            Some(got) => Err(BandwidthError::NotTaken { group: name(), want, got }),
            None => Err(BandwidthError::NoFiles { group: name() }),
        }
    }

    /// Which of the two lets a group use more CPU: by quota / period, unlimited being the greatest.
    #[must_use]
    pub fn cmp_ratio(&self, other: &Self) -> Ordering {
        match (self.quota, other.quota) {
            (Quota::Unlimited, Quota::Unlimited) => Ordering::Equal,
            (Quota::Unlimited, Quota::Us(_)) => Ordering::Greater,
            (Quota::Us(_), Quota::Unlimited) => Ordering::Less,
            (Quota::Us(mine), Quota::Us(theirs)) => {
                (u128::from(mine) * u128::from(other.period_us)).cmp(&(u128::from(theirs) * u128::from(self.period_us)))
            }
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota {
            Quota::Unlimited => write!(f, "no quota, period {} us", self.period_us)?,
            Quota::Us(us) => write!(f, "{us} us per {} us", self.period_us)?,
        }
        if self.burst_us > 0 {
            write!(f, ", burst {} us", self.burst_us)?;
        }
        Ok(())
    }
}

fn parse_v1_quota(text: &str) -> Option<Quota> {
    match text.trim_end() {
        "-1" => Some(Quota::Unlimited),
        number => number.parse().ok().map(Quota::Us),
    }
}

/// `max 100000` or `20000 100000` (`cpu_max_show`).
fn parse_v2_max(text: &str) -> Option<(Quota, u64)> {
    let (quota, period) = text.trim_end().split_once(' ')?;
    let quota = if quota == "max" { Quota::Unlimited } else { Quota::Us(quota.parse().ok()?) };
    Some((quota, period.parse().ok()?))
}

fn nested_remedy(parent: Option<&Bandwidth>) -> String {
    match parent {
        Some(parent) if parent.quota != Quota::Unlimited => {
            format!(
                ": its parent has {parent}, and on v1 neither a parent may allow less than a child; choose another --parent or a lower limit"
            )
        }
        _ => ": on v1 a child group of it, or an ancestor, has a limit that does not fit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limited(quota_us: u64, period_us: u64, burst_us: u64) -> Bandwidth {
        Bandwidth { quota: Quota::Us(quota_us), period_us, burst_us }
    }

    proptest! {
        #[test]
        fn any_text_is_a_quota_or_not(text in ".{0,24}") {
            let _ = (parse_v1_quota(&text), parse_v2_max(&text));
        }
    }

    #[test]
    fn v1_files_are_read_and_a_kernel_without_burst_has_burst_zero() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group::new(Version::V1, dir.path().to_owned());
        assert_eq!(Bandwidth::read(&group).expect("no error"), None);
        std::fs::write(dir.path().join(V1_QUOTA), "-1\n").expect("written");
        std::fs::write(dir.path().join(V1_PERIOD), "100000\n").expect("written");
        assert_eq!(Bandwidth::read(&group).expect("read"), Some(Bandwidth::UNLIMITED));
        let error = limited(20_000, 100_000, 5_000).write(&group).expect_err("no burst file");
        assert!(matches!(error, BandwidthError::NoBurst { burst_us: 5_000, .. }), "{error}");
        std::fs::write(dir.path().join(V1_QUOTA), "lots\n").expect("written");
        assert!(matches!(Bandwidth::read(&group), Err(GroupError::Odd { .. })));
    }

    #[test]
    fn v2_files_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let group = Group::new(Version::V2, dir.path().to_owned());
        std::fs::write(dir.path().join(V2_MAX), "20000 100000\n").expect("written");
        std::fs::write(dir.path().join(V2_BURST), "5000\n").expect("written");
        assert_eq!(Bandwidth::read(&group).expect("read"), Some(limited(20_000, 100_000, 5_000)));
        std::fs::write(dir.path().join(V2_MAX), "max 100000\n").expect("written");
        assert_eq!(Bandwidth::read(&group).expect("read").map(|bandwidth| bandwidth.quota), Some(Quota::Unlimited));
        assert_eq!(parse_v2_max("max\n"), None);
    }
}
