//! The simulated kernel's state, its agenda, and the records it emits.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
};

use super::{
    BEGIN, CONTAINER, CPUS, POD, Plan, Rules, SIDECAR,
    truth::{Recorder, Truth},
};
use crate::{
    event::{CgroupId, Event, Levels, OnCpu, What},
    time::MonoNs,
    timeline::{CountsFrom, Setting, interval::Span, thread::State},
};

/// A limited level.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) quota: u64,
    pub(super) period: u64,
    pub(super) pool: u64,
    pub(super) next_expires: u64,
    pub(super) active: bool,
    pub(super) idle: bool,
    pub(super) timer_cpu: u32,
    pub(super) slack_armed: bool,
}

/// A level's queue on a CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) remaining: i64,
    pub(super) throttled: bool,
    /// A grant was given and the remote call is on its way.
    pub(super) called: bool,
    /// `cfs_rq.throttled_clock` runs.
    pub(super) counting: bool,
}

#[derive(Debug)]
pub(super) struct Thread {
    pub(super) id: u32,
    pub(super) group: CgroupId,
    pub(super) state: State,
    pub(super) last_cpu: u32,
    /// Work left in this stretch; below zero: overrun.
    pub(super) left: i64,
    /// The stretches to come, last first.
    pub(super) stretches: Vec<(u64, u64)>,
    pub(super) sleep: u64,
    /// It leaves at its next return to user mode if it is still held then (6.18).
    pub(super) to_leave: bool,
    pub(super) exiting: bool,
    pub(super) is_new: bool,
}

/// Who has a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    Idle,
    /// Somebody who is not watched.
    Other,
    /// A thread, by index.
    Thread(usize),
}

#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) current: Current,
    pub(super) arrived: u64,
    pub(super) charged: u64,
    /// Counts arrivals: agenda entries of earlier ones are void.
    pub(super) turn: u64,
    /// Busy with an interrupt until then.
    pub(super) interrupt_until: u64,
    seq: u32,
}

/// What is to happen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// The timer tick, or the end of a stretch, of the thread that has a CPU.
    Tick {
        cpu: u32,
        turn: u64,
    },
    /// The thread that has a CPU returns to user mode.
    ToUser {
        cpu: u32,
        turn: u64,
    },
    Reschedule {
        cpu: u32,
    },
    Wake {
        thread: usize,
    },
    Move {
        thread: usize,
        to: u32,
    },
    /// A thread is moved to the other group.
    Regroup {
        thread: usize,
    },
    TimerEntry {
        level: CgroupId,
    },
    TimerExit {
        level: CgroupId,
        entry: u64,
        pool: u64,
        listed: Vec<u32>,
        slack: bool,
    },
    CallEntry {
        cpu: u32,
    },
    CallExit {
        cpu: u32,
        entry: u64,
    },
    SlackEntry {
        level: CgroupId,
    },
}

#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) rules: Rules,
    pub(super) late_timers: bool,
    pub(super) regroup: bool,
    pub(super) setting: Setting,
    pub(super) now: u64,
    until: u64,
    pub(super) levels: BTreeMap<CgroupId, Level>,
    pub(super) queues: BTreeMap<(CgroupId, u32), Queue>,
    /// Groups and CPUs whose `cfs_rq.throttled_clock_self` runs.
    pub(super) counting_local: BTreeSet<(CgroupId, u32)>,
    pub(super) threads: Vec<Thread>,
    pub(super) cpus: Vec<Cpu>,
    agenda: BinaryHeap<Reverse<(u64, u64, Action)>>,
    planned: u64,
    dice: u64,
    pub(super) events: Vec<Event>,
    pub(super) truth: Recorder,
}

impl Kernel {
    pub(super) fn new(plan: &Plan) -> Self {
        let now = BEGIN.0;
        let levels: BTreeMap<CgroupId, Level> = plan
            .limits
            .iter()
            .map(|(&id, limit)| {
                let level = Level {
                    quota: limit.quota,
                    period: limit.period,
                    pool: limit.quota,
                    next_expires: now - limit.period + limit.phase % limit.period,
                    active: false,
                    idle: true,
                    timer_cpu: 0,
                    slack_armed: false,
                };
                (id, level)
            })
            .collect();
        let queues = levels.keys().flat_map(|&id| (0..CPUS).map(move |cpu| ((id, cpu), Queue::default()))).collect();
        let threads = (100..).zip(&plan.workers).map(|(id, worker)| Thread {
            id,
            group: worker.group,
            state: State::Blocked,
            last_cpu: 0,
            left: 0,
            stretches: worker.stretches.iter().rev().copied().collect(),
            sleep: 0,
            to_leave: false,
            exiting: false,
            is_new: true,
        });
        let idle = || Cpu { current: Current::Idle, arrived: now, charged: now, turn: 0, interrupt_until: 0, seq: 0 };
        let mut kernel = Self {
            rules: plan.rules,
            late_timers: plan.late_timers,
            regroup: plan.regroup,
            setting: super::setting(plan.rules),
            now,
            until: now + plan.length,
            queues,
            counting_local: BTreeSet::new(),
            threads: threads.collect(),
            cpus: (0..CPUS).map(|_| idle()).collect(),
            agenda: BinaryHeap::new(),
            planned: 0,
            dice: plan.seed,
            events: vec![],
            truth: Recorder::default(),
            levels,
        };
        kernel.begin(plan);
        kernel
    }

    /// Threads that are at work when the observation begins have a CPU each as far as CPUs go; the others are still to come.
    fn begin(&mut self, plan: &Plan) {
        let mut free = (0..CPUS).collect::<Vec<_>>();
        for (index, worker) in plan.workers.iter().enumerate() {
            if worker.at_work
                && let Some(cpu) = free.pop()
            {
                let arrived = self.now - self.roll(1, 3_000_000);
                let thread = &mut self.threads[index];
                thread.is_new = false;
                thread.state = State::Running { cpu };
                thread.last_cpu = cpu;
                let id = thread.id;
                self.next_stretch(index);
                self.truth.thread(id, MonoNs(arrived), State::Running { cpu });
                self.cpus[cpu as usize].current = Current::Thread(index);
                self.cpus[cpu as usize].arrived = arrived;
                self.plan_tick(cpu);
            } else {
                let after = self.roll(1, 20_000_000);
                self.plan(self.now + after, Action::Wake { thread: index });
            }
        }
        for cpu in free {
            self.truth.idle_from(cpu, MonoNs(self.now));
        }
    }

    pub(super) fn run(mut self) -> (Vec<Event>, Truth) {
        while let Some(Reverse((at, _, action))) = self.agenda.pop() {
            // An observation ends at some instant, but not while a timer is long overdue: nobody could tell that from a run that
            // was not traced.
            let overdue = |level: &Level| level.active && level.next_expires + level.period / 3 < at;
            if at >= self.until && !self.levels.values().any(overdue) {
                break;
            }
            self.now = at.max(self.now + 1);
            if let Some(until) = self.interrupted(&action) {
                self.plan(until + 1, action);
            } else {
                self.act(action);
            }
        }
        let first = self.events.first().map_or(BEGIN, |event| event.at);
        let last = self.events.last().map_or(BEGIN, |event| event.at);
        (self.events, self.truth.finish(Span::new(first, MonoNs(last.0 + 1))))
    }

    /// Nothing else happens on a CPU that handles an interrupt.
    fn interrupted(&self, action: &Action) -> Option<u64> {
        let cpu = match action {
            Action::Tick { cpu, .. } | Action::ToUser { cpu, .. } | Action::Reschedule { cpu } => *cpu,
            Action::CallEntry { cpu } => *cpu,
            Action::TimerEntry { level } | Action::SlackEntry { level } => self.levels[level].timer_cpu,
            Action::Wake { .. }
            | Action::Move { .. }
            | Action::Regroup { .. }
            | Action::TimerExit { .. }
            | Action::CallExit { .. } => {
                return None;
            }
        };
        let until = self.cpus[cpu as usize].interrupt_until;
        (until >= self.now).then_some(until)
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Tick { cpu, turn } => self.tick(cpu, turn),
            Action::ToUser { cpu, turn } => self.return_to_user(cpu, turn),
            Action::Reschedule { cpu } => self.schedule(cpu, false),
            Action::Wake { thread } => self.wake(thread),
            Action::Move { thread, to } => self.move_waiting(thread, to),
            Action::Regroup { thread } => self.move_to_other_group(thread),
            Action::TimerEntry { level } => self.timer_entry(level, false),
            Action::SlackEntry { level } => self.timer_entry(level, true),
            Action::TimerExit { level, entry, pool, listed, slack } => {
                self.timer_exit(level, entry, pool, &listed, slack);
            }
            Action::CallEntry { cpu } => self.call_entry(cpu),
            Action::CallExit { cpu, entry } => self.call_exit(cpu, entry),
        }
    }

    pub(super) fn plan(&mut self, at: u64, action: Action) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, action)));
    }

    /// A number from `low` to below `high` (SplitMix64).
    pub(super) fn roll(&mut self, low: u64, high: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.dice;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        low + (mixed ^ (mixed >> 31)) % (high - low)
    }

    pub(super) fn one_in(&mut self, sides: u64) -> bool {
        self.roll(0, sides) == 0
    }

    pub(super) fn a_cpu(&mut self) -> u32 {
        u32::try_from(self.roll(0, u64::from(CPUS))).expect("a small number")
    }

    pub(super) fn at(&self) -> MonoNs {
        MonoNs(self.now)
    }

    pub(super) fn per_task(&self) -> bool {
        self.rules == Rules::Task
    }

    pub(super) fn path(&self, group: CgroupId) -> Vec<CgroupId> {
        self.setting.path(&group).to_vec()
    }

    /// Limited levels of a group's path, the group's own first.
    pub(super) fn limited(&self, group: CgroupId) -> Vec<CgroupId> {
        self.path(group).into_iter().filter(|id| self.levels.contains_key(id)).collect()
    }

    pub(super) fn throttled(&self, level: CgroupId, cpu: u32) -> bool {
        self.queues.get(&(level, cpu)).is_some_and(|queue| queue.throttled)
    }

    /// Whether the kernel counts a throttled level's time on a CPU.
    fn counting(&self, level: CgroupId, cpu: u32) -> bool {
        self.rules.counts_from() == CountsFrom::Mark
            || self.queues.get(&(level, cpu)).is_some_and(|queue| queue.counting)
    }

    /// Whether some level of a group's path is out of quota on a CPU.
    pub(super) fn held(&self, group: CgroupId, cpu: u32) -> bool {
        self.path(group).iter().any(|&level| self.throttled(level, cpu))
    }

    /// `cfs_rq.throttle_count`
    pub(super) fn throttle_count(&self, group: CgroupId, cpu: u32) -> u32 {
        self.path(group).iter().map(|&level| u32::from(self.throttled(level, cpu))).sum()
    }

    pub(super) fn emit(&mut self, cpu: u32, at: u64, what: What) {
        let account = &mut self.cpus[cpu as usize];
        let seq = account.seq;
        account.seq += 1;
        self.events.push(Event { at: MonoNs(at), cpu, seq, what });
    }

    /// What an event shows of a thread's path on a CPU; from here on the marks in it are known.
    pub(super) fn show(&mut self, thread: usize, cpu: u32) -> OnCpu {
        let Thread { id, group, .. } = self.threads[thread];
        let (mut levels, mut counting, mut counting_local) = (0, 0, 0);
        let from_mark = self.rules.counts_from() == CountsFrom::Mark;
        for (distance, level) in self.path(group).into_iter().enumerate() {
            if self.throttled(level, cpu) {
                levels |= 1 << distance;
                self.truth.shown(level, cpu, self.at(), from_mark);
                if self.counting(level, cpu) {
                    counting |= 1 << distance;
                    self.truth.counted(level, cpu, self.at());
                }
            }
            if self.counting_local.contains(&(level, cpu)) {
                counting_local |= 1 << distance;
            }
        }
        OnCpu {
            thread: id,
            cgroup: group,
            levels: Levels(levels),
            counting: Levels(counting),
            counting_local: Levels(counting_local),
            hierarchy: levels != 0,
            exempt: false,
        }
    }

    pub(super) fn set_state(&mut self, thread: usize, state: State) {
        self.threads[thread].state = state;
        let id = self.threads[thread].id;
        self.truth.thread(id, self.at(), state);
    }

    /// Up to 6.17 a waiting thread is held as long as its queue is; brings all threads on a CPU in line with the marks there.
    pub(super) fn hold_waiting(&mut self, cpu: u32) {
        if self.per_task() {
            return;
        }
        for thread in 0..self.threads.len() {
            let group = self.threads[thread].group;
            if self.threads[thread].state == (State::Waiting { cpu }) && self.held(group, cpu) {
                self.set_state(thread, State::Throttled { cpu });
            }
        }
        self.count_those_queued(cpu, None);
    }

    /// 6.6 to 6.17: time counts from when something is queued on a throttled queue. `and`: the group of a thread that is queued
    /// there although its state does not say so yet.
    pub(super) fn count_those_queued(&mut self, cpu: u32, and: Option<CgroupId>) {
        if self.rules != Rules::AsyncQueued {
            return;
        }
        let queued = |thread: &&Thread| [State::Throttled { cpu }, State::Waiting { cpu }].contains(&thread.state);
        let groups: Vec<CgroupId> = self.threads.iter().filter(queued).map(|thread| thread.group).chain(and).collect();
        for group in groups.into_iter().filter(|&group| self.held(group, cpu)).collect::<Vec<_>>() {
            self.suffering(group, cpu);
        }
    }

    /// A thread of `group` suffers on a CPU: the clocks of the levels that are out of quota at this instant start
    /// (`record_throttle_clock()`).
    pub(super) fn suffering(&mut self, group: CgroupId, cpu: u32) {
        for level in self.path(group) {
            let mut out = false;
            if let Some(queue) = self.queues.get_mut(&(level, cpu)).filter(|queue| queue.throttled) {
                queue.counting = true;
                out = true;
                self.truth.counted(level, cpu, self.at());
            }
            if self.held(level, cpu) {
                self.counting_local.insert((level, cpu));
                self.truth.suffers(level, cpu, self.at());
            }
            // 6.6 to 6.17: it is not queued any further up.
            if out && self.rules == Rules::AsyncQueued {
                break;
            }
        }
    }

    /// Groups that can suffer.
    pub(super) fn groups() -> [CgroupId; 3] {
        [CONTAINER, SIDECAR, POD]
    }
}
