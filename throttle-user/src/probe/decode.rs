//! Bytes of the ring buffer to [`Event`]s. Pure: short, long or unknown records are typed errors, never a panic.

use throttle_ebpf::record::{
    self, Attach, Exit, Header, Migrate, NOT_KNOWN, Queue, Switch, Timer, Wake, attach_flag, cause, kind, left,
    switch_flag, timer_flag, wake_flag,
};
use zerocopy::FromBytes;

use crate::{
    event::{CgroupId, Event, KernelCounters, Left, Levels, OnCpu, QueueState, Release, TimerRun, What},
    time::{DurationNs, MonoNs},
};

/// A record that this program does not understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the record of this kind has.
    #[error("record of kind {kind:?} has {length} bytes, too few")]
    Short {
        /// Kind, if the header was whole.
        kind: Option<u8>,
        /// Bytes there.
        length: usize,
    },
    /// A kind the contract does not have.
    #[error("record of unknown kind {0}")]
    Kind(u8),
    /// A value outside its enumeration.
    #[error("record of kind {kind} has {field} = {value}, which has no meaning")]
    Value {
        /// Kind.
        kind: u8,
        /// Field.
        field: &'static str,
        /// Value found.
        value: u8,
    },
}

/// Decodes one record.
///
/// # Errors
/// [`DecodeError`] says what is wrong; the caller counts it.
pub fn decode(bytes: &[u8]) -> Result<Event, DecodeError> {
    let header = take::<Header>(bytes, None)?;
    let what = match header.kind {
        kind::SWITCH => switch(&take(bytes, Some(header.kind))?)?,
        kind::WAKEUP | kind::WAKEUP_NEW => wakeup(&take(bytes, Some(header.kind))?),
        kind::MIGRATE => {
            let Migrate { header: _, cgroup, tid, dest_cpu } = take(bytes, Some(header.kind))?;
            What::Migrate { thread: tid, cgroup: CgroupId(cgroup), dest_cpu }
        }
        kind::EXIT => {
            let Exit { header: _, cgroup, tid, pad: _ } = take(bytes, Some(header.kind))?;
            What::Exit { thread: tid, cgroup: CgroupId(cgroup) }
        }
        kind::PERIOD => What::Period(timer(&take(bytes, Some(header.kind))?)),
        kind::SLACK => What::Slack(timer(&take(bytes, Some(header.kind))?)),
        kind::QUEUE => queue(&take(bytes, Some(header.kind))?)?,
        kind::ATTACH => {
            let Attach { header, cgroup, tid, pad: _ } = take(bytes, Some(header.kind))?;
            let blocked = header.flags & attach_flag::BLOCKED != 0;
            What::Attach { thread: tid, cgroup: CgroupId(cgroup), blocked }
        }
        other => return Err(DecodeError::Kind(other)),
    };
    Ok(Event { at: MonoNs(header.ts), cpu: u32::from(header.cpu), seq: header.seq, what })
}

fn take<T: FromBytes>(bytes: &[u8], kind: Option<u8>) -> Result<T, DecodeError> {
    T::read_from_prefix(bytes).map(|(record, _)| record).map_err(|_| DecodeError::Short { kind, length: bytes.len() })
}

fn switch(record: &Switch) -> Result<What, DecodeError> {
    let Switch {
        header,
        prev_tid,
        next_tid,
        prev_cgroup,
        next_cgroup,
        prev_ran,
        uncharged,
        prev_levels,
        next_levels,
        prev_left,
        pad: _,
    } = *record;
    let flag = |bit| header.flags & bit != 0;
    let side = |thread, cgroup, levels, [hierarchy, exempt]: [u8; 2]| {
        (cgroup != 0).then_some(on_cpu(thread, cgroup, levels, flag(hierarchy), flag(exempt)))
    };
    let left = match prev_left {
        left::UNWATCHED => None,
        left::BLOCKED => Some(Left::Blocked),
        left::PREEMPTED => Some(Left::Preempted),
        left::THROTTLED => Some(Left::Throttled),
        value => return Err(DecodeError::Value { kind: header.kind, field: "prev_left", value }),
    };
    Ok(What::Switch {
        prev: side(prev_tid, prev_cgroup, prev_levels, [switch_flag::PREV_HIERARCHY, switch_flag::PREV_EXEMPT]),
        left,
        uncharged: (uncharged != NOT_KNOWN).then_some(DurationNs(uncharged)),
        ran: (prev_ran != NOT_KNOWN && prev_cgroup != 0).then_some(DurationNs(prev_ran)),
        next: side(next_tid, next_cgroup, next_levels, [switch_flag::NEXT_HIERARCHY, switch_flag::NEXT_EXEMPT]),
        from_idle: flag(switch_flag::PREV_IDLE),
        to_idle: flag(switch_flag::NEXT_IDLE),
    })
}

fn on_cpu(thread: u32, cgroup: u64, levels: record::Levels, hierarchy: bool, exempt: bool) -> OnCpu {
    let record::Levels { throttled, counting, counting_local } = levels;
    OnCpu {
        thread,
        cgroup: CgroupId(cgroup),
        levels: Levels(throttled),
        counting: Levels(counting),
        counting_local: Levels(counting_local),
        hierarchy,
        exempt,
    }
}

fn wakeup(record: &Wake) -> What {
    let Wake { header, cgroup, tid, target_cpu, levels, hierarchy, pad: _ } = *record;
    let exempt = header.flags & wake_flag::EXEMPT != 0;
    What::Wakeup {
        task: on_cpu(tid, cgroup, levels, hierarchy != 0, exempt),
        target_cpu,
        new: header.kind == kind::WAKEUP_NEW,
    }
}

fn timer(record: &Timer) -> TimerRun {
    let Timer {
        header,
        cgroup,
        entry_ts,
        expires,
        next_expires,
        quota,
        period,
        burst,
        runtime_before,
        runtime_after,
        throttled_time,
        nr_periods,
        nr_throttled,
        throttled_cpus,
        pad: _,
    } = *record;
    TimerRun {
        cgroup: CgroupId(cgroup),
        entry: MonoNs(entry_ts),
        expires: MonoNs(expires),
        next_expires: MonoNs(next_expires),
        quota: (quota != u64::MAX).then_some(DurationNs(quota)),
        period: DurationNs(period),
        burst: DurationNs(burst),
        runtime_before: DurationNs(runtime_before),
        runtime_after: DurationNs(runtime_after),
        throttled_cpus,
        truncated: header.flags & timer_flag::TRUNCATED != 0,
        active: header.flags & timer_flag::ACTIVE != 0,
        kernel: KernelCounters { nr_periods, nr_throttled, throttled_time: DurationNs(throttled_time) },
    }
}

fn queue(record: &Queue) -> Result<What, DecodeError> {
    let Queue { header, cgroup, entry_ts, runtime_remaining, queue_cpu, throttle_count, throttled, cause, pad: _ } =
        *record;
    let release = match cause {
        cause::PERIOD => Release::Period,
        cause::SLACK => Release::Slack,
        cause::CSD => Release::Csd,
        value => return Err(DecodeError::Value { kind: header.kind, field: "cause", value }),
    };
    Ok(What::Queue(QueueState {
        cgroup: CgroupId(cgroup),
        cpu: queue_cpu,
        entry: MonoNs(entry_ts),
        throttled: throttled != 0,
        throttle_count,
        runtime_remaining,
        release,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    fn header(kind: u8, flags: u8) -> Header {
        Header { ts: 7, seq: 3, cpu: 1, kind, flags }
    }

    #[test]
    fn a_switch_keeps_both_sides_and_the_reason() {
        let record = Switch {
            header: header(kind::SWITCH, switch_flag::PREV_HIERARCHY | switch_flag::NEXT_IDLE),
            prev_tid: 10,
            next_tid: 0,
            prev_cgroup: 5_000_000_000,
            next_cgroup: 0,
            prev_ran: 12,
            uncharged: NOT_KNOWN,
            prev_levels: record::Levels { throttled: 0b10, counting: 0b10, counting_local: 0b11 },
            next_levels: record::Levels::default(),
            prev_left: left::THROTTLED,
            pad: [0; 3],
        };
        let event = decode(record.as_bytes()).expect("a whole record");
        let What::Switch { prev: Some(prev), left, next: None, from_idle: false, to_idle: true, ran, uncharged: None } =
            event.what
        else {
            panic!("{event:?}")
        };
        assert_eq!(ran, Some(DurationNs(12)));
        assert_eq!((prev.thread, prev.cgroup, left), (10, CgroupId(5_000_000_000), Some(Left::Throttled)));
        assert!(prev.levels.contains(1) && !prev.levels.contains(0) && prev.hierarchy);
    }

    #[test]
    fn values_without_meaning_are_refused() {
        let mut record = Queue {
            header: header(kind::QUEUE, 0),
            cgroup: 1,
            entry_ts: 0,
            runtime_remaining: -5,
            queue_cpu: 0,
            throttle_count: 1,
            throttled: 1,
            cause: 9,
            pad: [0; 6],
        };
        assert_eq!(decode(record.as_bytes()), Err(DecodeError::Value { kind: kind::QUEUE, field: "cause", value: 9 }));
        record.header.kind = 99;
        assert_eq!(decode(record.as_bytes()), Err(DecodeError::Kind(99)));
        record.header.kind = kind::PERIOD;
        assert!(matches!(decode(record.as_bytes()), Err(DecodeError::Short { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_truncated_record_is_short(cut in 0usize..112) {
            let mut bytes = [0u8; 112];
            bytes[14] = kind::PERIOD;
            let short = matches!(decode(&bytes[..cut]), Err(DecodeError::Short { .. }));
            prop_assert!(short);
        }
    }
}
