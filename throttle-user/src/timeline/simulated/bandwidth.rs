//! CFS bandwidth control of the simulated kernel: pools, debt, throttles, the period and slack timers, remote calls.

use super::{
    CALL, CALLBACK, Rules, TIMER_LATENCY,
    kernel::{Action, Current, Kernel},
    truth::Roll,
};
use crate::{
    event::{CgroupId, KernelCounters, QueueState, Release, TimerRun, What},
    time::{DurationNs, MonoNs},
    timeline::{CountsFrom, thread::State},
};

const SLICE: i64 = 5_000_000;
/// `min_cfs_rq_runtime`
const KEPT: i64 = 1_000_000;

impl Kernel {
    /// Charges the thread on a CPU with what it ran since it was last charged, at each limited level.
    pub(super) fn charge(&mut self, cpu: u32) {
        let account = &mut self.cpus[cpu as usize];
        let ran = (self.now - account.charged).cast_signed();
        account.charged = self.now;
        let Current::Thread(thread) = account.current else { return };
        self.threads[thread].left -= ran;
        for level in self.limited(self.threads[thread].group) {
            let Some(queue) = self.queues.get_mut(&(level, cpu)) else { continue };
            queue.remaining -= ran;
            if queue.remaining <= 0 && !queue.throttled {
                self.assign(level, cpu);
            }
        }
    }

    /// `__assign_cfs_rq_runtime()`
    fn assign(&mut self, level: CgroupId, cpu: u32) {
        self.start_timer(level, cpu);
        let (Some(pool), Some(queue)) = (self.levels.get_mut(&level), self.queues.get_mut(&(level, cpu))) else {
            return;
        };
        let amount = pool.pool.min((SLICE - queue.remaining).cast_unsigned());
        if amount > 0 {
            pool.pool -= amount;
            pool.idle = false;
            queue.remaining += amount.cast_signed();
        }
    }

    /// `start_cfs_bandwidth()`
    fn start_timer(&mut self, level: CgroupId, cpu: u32) {
        let now = self.now;
        let Some(timer) = self.levels.get_mut(&level).filter(|timer| !timer.active) else { return };
        timer.active = true;
        timer.timer_cpu = cpu;
        while timer.next_expires <= now {
            timer.next_expires += timer.period;
        }
        self.plan_timer(level);
    }

    fn plan_timer(&mut self, level: CgroupId) {
        let (due, period) = (self.levels[&level].next_expires, self.levels[&level].period);
        let late = if self.late_timers && self.one_in(15) { self.roll(period / 2, period * 5 / 2) } else { 0 };
        let latency = self.roll(1_000, TIMER_LATENCY.0);
        self.plan(due + latency + late, Action::TimerEntry { level });
    }

    /// `check_cfs_rq_runtime()` on a group's path: levels that are spent on a CPU, and get nothing more, become throttled there.
    pub(super) fn mark_spent(&mut self, group: CgroupId, cpu: u32) {
        for level in self.limited(group) {
            let queue = &self.queues[&(level, cpu)];
            if queue.remaining <= 0 && !queue.throttled {
                self.assign(level, cpu);
            }
            if let Some(queue) = self.queues.get_mut(&(level, cpu))
                && queue.remaining <= 0
            {
                queue.throttled = true;
            }
        }
    }

    /// Whether the first thread queued on a CPU would throttle a level there.
    pub(super) fn would_throttle(&self, level: CgroupId, cpu: u32) -> bool {
        let queue = &self.queues[&(level, cpu)];
        !queue.throttled && queue.remaining <= 0 && queue.remaining + self.levels[&level].pool.cast_signed() <= 0
    }

    /// `check_enqueue_throttle()` along a group's path. Up to 6.17 an entity of a throttled queue is not queued further up.
    pub(super) fn enqueue(&mut self, group: CgroupId, cpu: u32) {
        for level in self.limited(group) {
            if !self.queued(level, cpu) && !self.queues[&(level, cpu)].throttled {
                if self.queues[&(level, cpu)].remaining <= 0 {
                    self.assign(level, cpu);
                }
                if let Some(queue) = self.queues.get_mut(&(level, cpu)) {
                    queue.throttled = queue.remaining <= 0;
                }
            }
            if !self.per_task() && self.throttled(level, cpu) {
                return;
            }
        }
    }

    /// `return_cfs_rq_runtime()`: a level without a runnable thread on a CPU leaves what is over there to the others.
    pub(super) fn give_back(&mut self, cpu: u32) {
        for id in self.levels.keys().copied().collect::<Vec<_>>() {
            if self.runnable(id, cpu) {
                continue;
            }
            let (Some(pool), Some(queue)) = (self.levels.get_mut(&id), self.queues.get_mut(&(id, cpu))) else {
                continue;
            };
            let over = queue.remaining - KEPT;
            if over <= 0 || queue.throttled {
                continue;
            }
            queue.remaining -= over;
            pool.pool += over.cast_unsigned();
            let time_left = pool.active && pool.next_expires > self.now + 7_000_000;
            if pool.pool.cast_signed() > SLICE && time_left && !pool.slack_armed {
                pool.slack_armed = true;
                self.plan(self.now + 5_000_000, Action::SlackEntry { level: id });
            }
        }
    }

    pub(super) fn timer_entry(&mut self, level: CgroupId, slack: bool) {
        let cpu = self.levels[&level].timer_cpu;
        let listed: Vec<u32> = (0..super::CPUS).filter(|&cpu| self.queues[&(level, cpu)].throttled).collect();
        let exit = self.now + self.roll(3_000, CALLBACK.0);
        self.cpus[cpu as usize].interrupt_until = exit;
        let (entry, pool) = (self.now, self.levels[&level].pool);
        self.plan(exit, Action::TimerExit { level, entry, pool, listed, slack });
    }

    pub(super) fn timer_exit(&mut self, id: CgroupId, entry: u64, pool: u64, listed: &[u32], slack: bool) {
        let cpu = self.levels[&id].timer_cpu;
        self.cpus[cpu as usize].interrupt_until = self.now;
        self.shown_as_listed(id, listed, entry);
        let Some(level) = self.levels.get_mut(&id) else { return };
        let expires = level.next_expires;
        let mut distribute = !listed.is_empty();
        let overrun = if slack { 0 } else { (entry - expires) / level.period + 1 };
        if slack {
            level.slack_armed = false;
            distribute &= level.pool.cast_signed() > SLICE && level.next_expires > self.now + 2_000_000;
        } else {
            level.next_expires += overrun * level.period;
            // Without a burst the pool is filled up to the quota, never beyond.
            level.pool = level.quota;
            level.active = !(level.idle && listed.is_empty());
            level.idle = listed.is_empty();
        }
        if distribute {
            self.distribute(id, listed, cpu, if slack { Release::Slack } else { Release::Period });
        }
        let level = &self.levels[&id];
        let run = TimerRun {
            cgroup: id,
            entry: MonoNs(entry),
            expires: MonoNs(expires),
            next_expires: MonoNs(level.next_expires),
            quota: Some(DurationNs(level.quota)),
            period: DurationNs(level.period),
            burst: DurationNs::ZERO,
            runtime_before: DurationNs(pool),
            runtime_after: DurationNs(level.pool),
            throttled_cpus: u32::try_from(listed.len()).expect("few CPUs"),
            truncated: false,
            active: level.active,
            kernel: KernelCounters { nr_periods: 0, nr_throttled: 0, throttled_time: DurationNs::ZERO },
        };
        let active = level.active;
        let roll = Roll {
            due: run.expires,
            entry: run.entry,
            exit: self.at(),
            periods: overrun,
            throttled_cpus: run.throttled_cpus,
        };
        self.emit(cpu, self.now, if slack { What::Slack(run) } else { What::Period(run) });
        for &queue in listed {
            self.report(id, queue, cpu, entry, if slack { Release::Slack } else { Release::Period });
        }
        if !slack {
            self.truth.rolled(id, roll);
            if active {
                self.plan_timer(id);
            }
        }
    }

    /// The records of a callback show that queues were throttled at its entry, where nothing has shown it before.
    fn shown_as_listed(&mut self, level: CgroupId, cpus: &[u32], entry: u64) {
        let counted = self.rules.counts_from() == CountsFrom::Mark;
        for &cpu in cpus {
            if self.throttled(level, cpu) {
                self.truth.shown(level, cpu, MonoNs(entry), counted);
            }
        }
    }

    /// `distribute_cfs_runtime()`: each listed queue is granted what lifts it just above zero, as long as the pool lasts.
    fn distribute(&mut self, id: CgroupId, listed: &[u32], timer_cpu: u32, by: Release) {
        for &cpu in listed {
            let (Some(level), Some(queue)) = (self.levels.get_mut(&id), self.queues.get_mut(&(id, cpu))) else {
                continue;
            };
            if level.pool == 0 {
                return;
            }
            if queue.called || !queue.throttled {
                continue;
            }
            let grant = level.pool.min((1 - queue.remaining).max(0).cast_unsigned());
            level.pool -= grant;
            queue.remaining += grant.cast_signed();
            if queue.remaining <= 0 {
                continue;
            }
            if cpu == timer_cpu || self.rules == Rules::Direct {
                self.release(id, cpu, by);
            } else {
                queue.called = true;
                let after = self.roll(5_000, CALL.0 - 20_000);
                self.plan(self.now + after, Action::CallEntry { cpu });
            }
        }
    }

    pub(super) fn call_entry(&mut self, cpu: u32) {
        let exit = self.now + self.roll(3_000, 20_000);
        self.cpus[cpu as usize].interrupt_until = exit;
        self.plan(exit, Action::CallExit { cpu, entry: self.now });
    }

    fn called(&self, cpu: u32) -> Vec<CgroupId> {
        self.queues.iter().filter(|((_, on), queue)| *on == cpu && queue.called).map(|((level, _), _)| *level).collect()
    }

    pub(super) fn call_exit(&mut self, cpu: u32, entry: u64) {
        self.cpus[cpu as usize].interrupt_until = self.now;
        let called = self.called(cpu);
        for &level in &called {
            self.shown_as_listed(level, &[cpu], entry);
            let Some(queue) = self.queues.get_mut(&(level, cpu)) else { continue };
            queue.called = false;
            // `unthrottle_cfs_rq()` returns early if work in the kernel ate the grant (6.18).
            if queue.remaining > 0 {
                self.release(level, cpu, Release::Csd);
            }
        }
        for level in called {
            self.report(level, cpu, cpu, entry, Release::Csd);
        }
    }

    fn report(&mut self, level: CgroupId, queue_cpu: u32, by_cpu: u32, entry: u64, release: Release) {
        let queue = &self.queues[&(level, queue_cpu)];
        let state = QueueState {
            cgroup: level,
            cpu: queue_cpu,
            entry: MonoNs(entry),
            throttled: queue.throttled,
            throttle_count: self.throttle_count(level, queue_cpu),
            runtime_remaining: queue.remaining,
            release,
        };
        self.emit(by_cpu, self.now, What::Queue(state));
        // The count shows the levels above, too.
        let counted = self.rules.counts_from() == CountsFrom::Mark;
        for above in self.path(level).into_iter().skip(1) {
            if self.throttled(above, queue_cpu) {
                self.truth.shown(above, queue_cpu, self.at(), counted);
            }
        }
    }

    /// `unthrottle_cfs_rq()`
    fn release(&mut self, level: CgroupId, cpu: u32, by: Release) {
        if let Some(queue) = self.queues.get_mut(&(level, cpu)) {
            queue.throttled = false;
            queue.counting = false;
        }
        self.truth.released(level, cpu, self.at(), by.into());
        for group in Self::groups() {
            if self.setting.path(&group).contains(&level) && !self.held(group, cpu) {
                self.counting_local.remove(&(group, cpu));
                self.truth.relieved(group, cpu, self.at());
            }
        }
        for thread in 0..self.threads.len() {
            let group = self.threads[thread].group;
            if self.threads[thread].state == (State::Throttled { cpu }) && !self.held(group, cpu) {
                self.set_state(thread, State::Waiting { cpu });
            }
        }
        // 6.6 to 6.17: queued again with its parent, which may be out of quota itself.
        self.count_those_queued(cpu, None);
        self.kick(cpu);
    }
}
