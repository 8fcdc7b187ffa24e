//! What each thread did, put together from the events alone: a plain reading of switches, wakeups and releases, without the
//! observer's reconstructions. It agrees with the observer's shares up to microseconds an edge.

use std::collections::BTreeMap;

use super::events::{Event, Left, Side, What};

/// Parts of a window, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// On a CPU and charged for it.
    pub(crate) on_cpu: u64,
    /// Held while the own group was out of quota.
    pub(crate) own: u64,
    /// Held while only groups above were.
    pub(crate) above: u64,
    /// Runnable and not held, and uncharged time on a CPU.
    pub(crate) waited: u64,
    /// Asleep.
    pub(crate) blocked: u64,
    /// Edges within the window.
    pub(crate) edges: u64,
    /// Length of stretches whose end was not traced: a release, a switch or a wakeup is missing, and what the stretch was is known
    /// only in part.
    pub(crate) doubtful: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Waiting,
    /// Bits of the levels still out.
    Held(u64),
    Blocked,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: u64,
    until: u64,
    state: State,
    uncharged: u64,
    doubtful: bool,
}

/// The scheduler notes an arrival within this of the switch-in, ns, unless a hypervisor took the CPU in between. Later, another one
/// was not traced.
const NOTED: u64 = 1_200_000;

#[derive(Debug)]
struct Thread {
    cgroup: u64,
    cpu: u64,
    since: u64,
    state: State,
    uncharged: Option<u64>,
    stretches: Vec<Stretch>,
}

impl Thread {
    fn turn(&mut self, at: u64, state: State) {
        if at > self.since {
            self.stretches.push(Stretch {
                from: self.since,
                until: at,
                state: self.state,
                uncharged: 0,
                doubtful: false,
            });
        }
        self.since = self.since.max(at);
        self.state = state;
    }

    /// What was last is known only in part; of a hold, since it began.
    fn doubt(&mut self) -> bool {
        let mut back = self.stretches.iter_mut().rev();
        if let Some(last) = back.next() {
            last.doubtful = true;
            if matches!(last.state, State::Held(_)) {
                back.take_while(|stretch| matches!(stretch.state, State::Held(_)))
                    .for_each(|stretch| stretch.doubtful = true);
            }
            return true;
        }
        false
    }
}

/// Threads of a limit.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: BTreeMap<u64, Thread>,
    /// How often an event shows that one before it was not traced.
    missing: u64,
}

impl Threads {
    /// `paths`: each group's path, itself first. `by_task`: the kernel takes off each thread by itself (6.18 on), a woken thread runs
    /// until it returns to user mode.
    pub(crate) fn of(events: &[Event], paths: &[Vec<u64>], by_task: bool) -> Self {
        let mut all = Self { threads: BTreeMap::new(), missing: 0 };
        for event in events {
            match &event.what {
                What::Switch { prev, uncharged, next, .. } => {
                    if let Some((side, left, ran)) = prev {
                        all.leave(event, *side, *left, *ran, *uncharged);
                    }
                    if let Some(side) = next {
                        let thread = all.entry(*side, event.at);
                        let untraced = !matches!(thread.state, State::Waiting);
                        thread.turn(event.at, State::Running);
                        let doubted = untraced && thread.doubt();
                        (thread.cpu, thread.uncharged) = (event.cpu, *uncharged);
                        all.missing += u64::from(doubted);
                    }
                    for side in [prev.map(|(side, ..)| side), *next].into_iter().flatten() {
                        all.also_out(event, side, by_task);
                    }
                }
                What::Wakeup(side, cpu) => {
                    let thread = all.entry(*side, event.at);
                    if thread.state == State::Blocked {
                        let held = !by_task && side.out != 0;
                        thread.turn(event.at, if held { State::Held(side.out) } else { State::Waiting });
                        thread.cpu = *cpu;
                    }
                }
                What::Queue(group, cpu, still) => {
                    if !still {
                        all.released(event.at, *group, *cpu, paths);
                    }
                }
                What::Period(_) | What::Other => {}
            }
        }
        let end = events.last().map_or(0, |event| event.at);
        for thread in all.threads.values_mut() {
            thread.turn(end, thread.state);
        }
        all
    }

    fn entry(&mut self, side: Side, at: u64) -> &mut Thread {
        self.threads.entry(side.thread).or_insert_with(|| Thread {
            cgroup: side.cgroup,
            cpu: u64::MAX,
            since: at,
            state: State::Blocked,
            uncharged: None,
            stretches: Vec::new(),
        })
    }

    fn leave(&mut self, event: &Event, side: Side, left: Left, ran: Option<u64>, uncharged: Option<u64>) {
        let thread = self.entry(side, event.at);
        // The scheduler's own note of its arrival; a switch-in that was not traced is known by it alone.
        let arrived = ran.map_or(thread.since, |ran| event.at - ran.min(event.at));
        let untraced = thread.state != State::Running || arrived > thread.since + NOTED;
        if thread.state == State::Running {
            // The time charged, laid at the end: the few microseconds before it count as waiting.
            thread.state = State::Waiting;
        }
        thread.turn(arrived.max(thread.since), State::Running);
        let doubted = untraced && thread.doubt();
        // Of an arrival that was not traced nothing is known.
        let taken = match (thread.uncharged.take(), uncharged) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => 0,
        };
        thread.turn(
            event.at,
            match left {
                Left::Blocked => State::Blocked,
                Left::Preempted => State::Waiting,
                Left::Throttled => State::Held(side.out),
            },
        );
        if let Some(last) = thread.stretches.last_mut().filter(|last| last.state == State::Running) {
            last.uncharged = taken.min(last.until - last.from);
        }
        thread.cpu = event.cpu;
        self.missing += u64::from(doubted);
    }

    /// How often an event shows that one before it was not traced.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// A level that ran out after a thread was taken off holds it as well; before 6.18 also whoever waits in the queue, for it is
    /// taken off whole.
    fn also_out(&mut self, event: &Event, side: Side, by_task: bool) {
        for thread in self.threads.values_mut() {
            if thread.cpu != event.cpu || thread.cgroup != side.cgroup {
                continue;
            }
            let out = match thread.state {
                State::Held(out) => out,
                State::Waiting if !by_task => 0,
                _ => continue,
            };
            if side.out & !out != 0 {
                thread.turn(event.at, State::Held(out | side.out));
            }
        }
    }

    fn released(&mut self, at: u64, group: u64, cpu: u64, paths: &[Vec<u64>]) {
        for thread in self.threads.values_mut().filter(|thread| thread.cpu == cpu) {
            let State::Held(out) = thread.state else { continue };
            let path = paths.iter().find(|path| path.first() == Some(&thread.cgroup));
            let Some(level) = path.and_then(|path| path.iter().position(|&level| level == group)) else { continue };
            let out = out & !(1 << level);
            thread.turn(at, if out == 0 { State::Waiting } else { State::Held(out) });
        }
    }

    /// What a thread did in a window.
    pub(crate) fn parts(&self, thread: u64, window: (u64, u64)) -> Parts {
        let mut parts = Parts::default();
        for stretch in self.within(thread, window) {
            let length = stretch.until - stretch.from;
            parts.edges += 1;
            parts.doubtful += if stretch.doubtful { length } else { 0 };
            match stretch.state {
                State::Running => {
                    parts.on_cpu += length - stretch.uncharged;
                    parts.waited += stretch.uncharged;
                }
                State::Waiting => parts.waited += length,
                State::Held(out) if out & 1 == 1 => parts.own += length,
                State::Held(_) => parts.above += length,
                State::Blocked => parts.blocked += length,
            }
        }
        parts
    }

    fn within(&self, thread: u64, window: (u64, u64)) -> impl Iterator<Item = Stretch> + '_ {
        let stretches = self.threads.get(&thread).map_or(&[][..], |thread| &thread.stretches);
        let first = stretches.partition_point(|stretch| stretch.until <= window.0);
        stretches[first..].iter().take_while(move |stretch| stretch.from < window.1).map(move |stretch| {
            let (from, until) = (stretch.from.max(window.0), stretch.until.min(window.1));
            let part = u128::from(stretch.uncharged) * u128::from(until - from);
            let uncharged = part / u128::from((stretch.until - stretch.from).max(1));
            Stretch { from, until, uncharged: u64::try_from(uncharged).unwrap_or(0), ..*stretch }
        })
    }

    /// Time on CPU of all threads of a group within a window.
    pub(crate) fn used(&self, cgroup: u64, window: (u64, u64)) -> u64 {
        let own = self.threads.iter().filter(|(_, thread)| thread.cgroup == cgroup);
        own.flat_map(|(&number, _)| self.within(number, window))
            .filter(|stretch| stretch.state == State::Running)
            .map(|stretch| stretch.until - stretch.from)
            .sum()
    }

    /// Length of stretches of a group's threads within a window that are known only in part.
    pub(crate) fn doubtful(&self, cgroup: u64, window: (u64, u64)) -> u64 {
        let own = self.threads.iter().filter(|(_, thread)| thread.cgroup == cgroup);
        own.flat_map(|(&number, _)| self.within(number, window))
            .filter(|stretch| stretch.doubtful)
            .map(|stretch| stretch.until - stretch.from)
            .sum()
    }

    /// Stretches within a window in which some thread of a group was held, united.
    pub(crate) fn held(&self, cgroup: u64, window: (u64, u64)) -> Vec<(u64, u64)> {
        let own = self.threads.iter().filter(|(_, thread)| thread.cgroup == cgroup);
        let mut held: Vec<(u64, u64)> = own
            .flat_map(|(&number, _)| self.within(number, window))
            .filter(|stretch| matches!(stretch.state, State::Held(_)))
            .map(|stretch| (stretch.from, stretch.until))
            .collect();
        held.sort_unstable();
        let mut united: Vec<(u64, u64)> = Vec::new();
        for (from, until) in held {
            match united.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => united.push((from, until)),
            }
        }
        united
    }
}

/// Idle time of all CPUs within stretches (ascending, apart): between a switch to the idle task and the next switch there.
pub(crate) fn idle_within(events: &[Event], stretches: &[(u64, u64)]) -> u64 {
    let begin = events.first().map_or(0, |event| event.at);
    // A CPU whose first switch leaves idleness was idle until then.
    let mut since: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    let mut total = 0;
    for event in events {
        let What::Switch { prev, idle: (from_idle, to_idle), .. } = &event.what else { continue };
        let was = since.insert(event.cpu, to_idle.then_some(event.at));
        let start = match was {
            Some(start) => start,
            None => from_idle.then_some(begin),
        };
        let ran = prev.and_then(|(_, _, ran)| ran).filter(|_| !from_idle).unwrap_or(0);
        if let Some(start) = start {
            total += overlap(stretches, (start, event.at - ran.min(event.at)));
        }
    }
    let end = events.last().map_or(0, |event| event.at);
    total + since.values().flatten().map(|&start| overlap(stretches, (start, end))).sum::<u64>()
}

fn overlap(stretches: &[(u64, u64)], span: (u64, u64)) -> u64 {
    let first = stretches.partition_point(|&(_, until)| until <= span.0);
    stretches[first..]
        .iter()
        .take_while(|&&(from, _)| from < span.1)
        .map(|&(from, until)| until.min(span.1).saturating_sub(from.max(span.0)))
        .sum()
}
