//! Threads of the simulated kernel: ticks, switches, wakeups, moves, ends.

use super::{
    CONTAINER, SIDECAR,
    kernel::{Action, Current, Kernel, Thread},
};
use crate::{
    event::{CgroupId, Left, What},
    time::DurationNs,
    timeline::thread::State,
};

const TICK: u64 = 4_000_000;

impl Kernel {
    /// Takes up a thread's next stretch of work.
    pub(super) fn next_stretch(&mut self, thread: usize) {
        let thread = &mut self.threads[thread];
        if let Some((work, sleep)) = thread.stretches.pop() {
            thread.left = work.cast_signed();
            thread.sleep = sleep;
        }
    }

    /// The thread on a CPU will be looked at again at the next tick, or at the end of its stretch.
    pub(super) fn plan_tick(&mut self, cpu: u32) {
        let turn = self.cpus[cpu as usize].turn;
        let most = self.roll(TICK / 2, TICK);
        let after = match self.cpus[cpu as usize].current {
            Current::Thread(thread) => most.min(self.threads[thread].left.max(1).cast_unsigned()),
            Current::Other => most / 4,
            Current::Idle => return,
        };
        self.plan(self.now + after, Action::Tick { cpu, turn });
    }

    pub(super) fn tick(&mut self, cpu: u32, turn: u64) {
        if self.cpus[cpu as usize].turn != turn {
            return;
        }
        self.charge(cpu);
        let Current::Thread(thread) = self.cpus[cpu as usize].current else {
            return self.schedule(cpu, false);
        };
        let done = self.threads[thread].left <= 0;
        if done && self.threads[thread].stretches.is_empty() && !self.threads[thread].exiting {
            self.threads[thread].exiting = true;
            self.threads[thread].left = 10_000;
            let (id, cgroup) = (self.threads[thread].id, self.threads[thread].group);
            self.emit(cpu, self.now, What::Exit { thread: id, cgroup });
            return self.plan_tick(cpu);
        }
        let group = self.threads[thread].group;
        let spent = self.limited(group).iter().any(|&level| self.queues[&(level, cpu)].remaining <= 0);
        if done || spent || self.one_in(2) {
            self.schedule(cpu, false);
        } else {
            self.plan_tick(cpu);
        }
    }

    /// From 6.18 on a thread of a throttled queue leaves here.
    pub(super) fn return_to_user(&mut self, cpu: u32, turn: u64) {
        let Current::Thread(thread) = self.cpus[cpu as usize].current else { return };
        if self.cpus[cpu as usize].turn != turn || !self.threads[thread].to_leave {
            return;
        }
        self.charge(cpu);
        self.threads[thread].to_leave = false;
        if self.held(self.threads[thread].group, cpu) && !self.threads[thread].exiting {
            self.schedule(cpu, true);
        }
    }

    /// `__schedule()`; `leaves`: the thread on the CPU was just taken off by its limit.
    pub(super) fn schedule(&mut self, cpu: u32, leaves: bool) {
        self.charge(cpu);
        let before = self.cpus[cpu as usize].current;
        let (mut prev, mut left, mut stays) = (None, None, None);
        if let Current::Thread(thread) = before {
            let blocks = self.threads[thread].left <= 0;
            if !self.per_task() {
                let group = self.threads[thread].group;
                self.mark_spent(group, cpu);
            }
            let held = !self.per_task() && self.held(self.threads[thread].group, cpu);
            let why = if blocks {
                Left::Blocked
            } else if leaves || held {
                Left::Throttled
            } else {
                stays = Some(thread);
                Left::Preempted
            };
            if leaves {
                // It is taken off before the switch: what runs out in the switch finds nobody to count for.
                let group = self.threads[thread].group;
                self.suffering(group, cpu);
                self.mark_spent(group, cpu);
            }
            (prev, left) = (Some(thread), Some(why));
        }
        let next = self.pick(cpu, stays);
        if next == before {
            self.cpus[cpu as usize].turn += 1;
            self.plan_tick(cpu);
            self.plan_leaving(cpu);
            return;
        }
        // The throttle comes with the pick, before the tracepoint: whoever is queued then is counted for.
        let stays_queued = prev.filter(|_| left != Some(Left::Blocked)).map(|thread| self.threads[thread].group);
        self.count_those_queued(cpu, stays_queued);
        let sides = (
            prev.map(|thread| self.show(thread, cpu)),
            match next {
                Current::Thread(thread) => Some(self.show(thread, cpu)),
                Current::Other | Current::Idle => None,
            },
        );
        let ran = prev.map(|_| DurationNs(self.now - self.cpus[cpu as usize].arrived));
        let what = What::Switch {
            prev: sides.0,
            left,
            ran,
            uncharged: None,
            next: sides.1,
            from_idle: before == Current::Idle,
            to_idle: next == Current::Idle,
        };
        if sides.0.is_some() || sides.1.is_some() || before == Current::Idle || next == Current::Idle {
            self.emit(cpu, self.now, what);
        }
        if let (Some(thread), Some(why)) = (prev, left) {
            self.gone(thread, why, cpu);
        }
        self.come(cpu, before, next);
        self.hold_waiting(cpu);
        self.give_back(cpu);
    }

    /// A thread has left its CPU.
    fn gone(&mut self, thread: usize, why: Left, cpu: u32) {
        match why {
            Left::Preempted => self.set_state(thread, State::Waiting { cpu }),
            Left::Throttled => self.set_state(thread, State::Throttled { cpu }),
            Left::Blocked if self.threads[thread].exiting => {
                self.threads[thread].state = State::Blocked;
                let id = self.threads[thread].id;
                self.truth.ended(id, self.at());
            }
            Left::Blocked => {
                self.set_state(thread, State::Blocked);
                let sleep = self.threads[thread].sleep;
                self.plan(self.now + sleep.max(1), Action::Wake { thread });
            }
        }
    }

    /// Somebody has got a CPU.
    fn come(&mut self, cpu: u32, before: Current, next: Current) {
        let at = self.at();
        if before == Current::Idle {
            self.truth.idle_until(cpu, at);
        }
        if next == Current::Idle {
            self.truth.idle_from(cpu, at);
        }
        let now = self.now;
        let account = &mut self.cpus[cpu as usize];
        account.current = next;
        account.arrived = now;
        account.charged = now;
        account.turn += 1;
        if let Current::Thread(thread) = next {
            self.set_state(thread, State::Running { cpu });
            self.threads[thread].last_cpu = cpu;
        }
        self.plan_tick(cpu);
        self.plan_leaving(cpu);
    }

    fn plan_leaving(&mut self, cpu: u32) {
        if let Current::Thread(thread) = self.cpus[cpu as usize].current
            && self.threads[thread].to_leave
        {
            let turn = self.cpus[cpu as usize].turn;
            let kernel_work = if self.one_in(5) { self.roll(100_000, 600_000) } else { self.roll(3_000, 30_000) };
            self.plan(self.now + kernel_work, Action::ToUser { cpu, turn });
        }
    }

    /// Who gets a CPU; `stays` is runnable there and has it now.
    fn pick(&mut self, cpu: u32, stays: Option<usize>) -> Current {
        let mut ready: Vec<usize> = (0..self.threads.len())
            .filter(|&thread| self.threads[thread].state == (State::Waiting { cpu }))
            .filter(|&thread| self.per_task() || !self.held(self.threads[thread].group, cpu))
            .collect();
        ready.extend(stays);
        if self.one_in(8) {
            return Current::Other;
        }
        if ready.is_empty() {
            return if self.one_in(5) { Current::Other } else { Current::Idle };
        }
        let chosen = self.roll(0, ready.len() as u64);
        let thread = ready[usize::try_from(chosen).expect("an index")];
        if self.per_task() {
            let group = self.threads[thread].group;
            self.mark_spent(group, cpu);
            self.threads[thread].to_leave = self.held(group, cpu);
        }
        Current::Thread(thread)
    }

    pub(super) fn wake(&mut self, thread: usize) {
        self.next_stretch(thread);
        let (waker, target) = (self.a_cpu(), self.a_cpu());
        let group = self.threads[thread].group;
        let new = std::mem::take(&mut self.threads[thread].is_new);
        if !new && target != self.threads[thread].last_cpu {
            let id = self.threads[thread].id;
            self.emit(waker, self.now, What::Migrate { thread: id, cgroup: group, dest_cpu: target });
        }
        self.enqueue(group, target);
        self.count_those_queued(target, Some(group));
        let task = self.show(thread, target);
        self.emit(waker, self.now, What::Wakeup { task, target_cpu: target, new });
        self.threads[thread].last_cpu = target;
        self.set_state(thread, State::Waiting { cpu: target });
        self.hold_waiting(target);
        self.kick(target);
    }

    /// A CPU has somebody new to run: at once if it is idle, else perhaps.
    pub(super) fn kick(&mut self, cpu: u32) {
        if self.cpus[cpu as usize].current == Current::Idle || self.one_in(3) {
            let after = self.roll(2_000, 40_000);
            self.plan(self.now + after, Action::Reschedule { cpu });
        }
        self.maybe_move();
    }

    /// Now and then a thread that waits is to move.
    fn maybe_move(&mut self) {
        if self.one_in(4) {
            let thread = usize::try_from(self.roll(0, self.threads.len() as u64)).expect("an index");
            let to = self.a_cpu();
            let after = self.roll(1_000, 3_000_000);
            self.plan(self.now + after, Action::Move { thread, to });
        }
        if self.regroup && self.one_in(6) {
            let thread = usize::try_from(self.roll(0, self.threads.len() as u64)).expect("an index");
            let after = self.roll(1_000, 3_000_000);
            self.plan(self.now + after, Action::Regroup { thread });
        }
    }

    /// `sched_move_task()`, and the record that follows it. No move throttles the queue it ends at.
    pub(super) fn move_to_other_group(&mut self, thread: usize) {
        let Thread { id, group, state, is_new, exiting, .. } = self.threads[thread];
        let to = if group == CONTAINER { SIDECAR } else { CONTAINER };
        let cpu = match state {
            State::Running { cpu } | State::Waiting { cpu } | State::Throttled { cpu } => Some(cpu),
            State::Blocked | State::Unknown => None,
        };
        if let Some(cpu) = cpu {
            self.charge(cpu);
            if self.limited(to).iter().any(|&level| self.would_throttle(level, cpu)) {
                return;
            }
            self.enqueue(to, cpu);
        }
        if is_new || exiting {
            return;
        }
        self.threads[thread].group = to;
        if let State::Throttled { cpu } = state
            && !self.held(to, cpu)
        {
            self.set_state(thread, State::Waiting { cpu });
        }
        let by = self.a_cpu();
        self.emit(by, self.now, What::Attach { thread: id, cgroup: to, blocked: cpu.is_none() });
        if let Some(cpu) = cpu {
            self.hold_waiting(cpu);
            self.give_back(cpu);
            self.kick(cpu);
        }
    }

    /// The load balancer, or a change of affinity, moves a thread that is not running. No move throttles the queue it ends at: that
    /// would be a throttle no event shows.
    pub(super) fn move_waiting(&mut self, thread: usize, to: u32) {
        let group = self.threads[thread].group;
        let from = match self.threads[thread].state {
            State::Waiting { cpu } | State::Throttled { cpu } => cpu,
            State::Running { .. } | State::Blocked | State::Unknown => return,
        };
        let held_there = self.held(group, to);
        let throttled = matches!(self.threads[thread].state, State::Throttled { .. });
        let spends = self.limited(group).iter().any(|&level| self.would_throttle(level, to));
        if from == to || spends || (self.per_task() && held_there && throttled) {
            return;
        }
        let id = self.threads[thread].id;
        let by = self.a_cpu();
        self.emit(by, self.now, What::Migrate { thread: id, cgroup: group, dest_cpu: to });
        self.enqueue(group, to);
        self.threads[thread].last_cpu = to;
        self.threads[thread].to_leave = false;
        self.set_state(thread, State::Waiting { cpu: to });
        self.hold_waiting(to);
        self.give_back(from);
        if self.cpus[to as usize].current == Current::Idle {
            let after = self.roll(2_000, 40_000);
            self.plan(self.now + after, Action::Reschedule { cpu: to });
        }
    }

    /// Whether a level has a thread on a CPU that is runnable and not taken off by a limit.
    pub(super) fn runnable(&self, level: CgroupId, cpu: u32) -> bool {
        self.threads.iter().any(|thread| {
            self.setting.path(&thread.group).contains(&level)
                && matches!(thread.state, State::Running { cpu: on } | State::Waiting { cpu: on } if on == cpu)
        })
    }

    /// Whether a level has a thread on a CPU, taken off or not.
    pub(super) fn queued(&self, level: CgroupId, cpu: u32) -> bool {
        self.threads.iter().any(|thread| {
            self.setting.path(&thread.group).contains(&level)
                && matches!(thread.state, State::Running { cpu: on } | State::Waiting { cpu: on } | State::Throttled { cpu: on } if on == cpu)
        })
    }
}
