//! A workload in scratch groups under the observer, bracketed by two readings of the kernel's counters with quiet before and
//! after: what was seen, and what the program itself makes of it.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use throttle_user::{
    cgroup::{
        Bandwidth, Counters, CpuLimit, Group, Hierarchy, LevelName, Nesting, Quietness, Quota, Scratch, ScratchPlan,
        tree, wait_quiet,
    },
    event::{CgroupId, Event, Losses, What},
    probe::{Detail, KernelLayout, Observer, ObserverPlan, observer::RING_BYTES, prerequisites},
    run::{
        Head, Kept, SCHEMA, SweepPlan,
        agree::{Agreement, Check, Quantity},
        derive::{LimitLine, RawLimit, RunLine, explain},
        environment::{Environment, stolen},
        record::{Ending, LevelReading, LimitBegin, LimitEnd},
    },
    time::ClockAnchor,
    timeline::{Setting, Timeline, thread::ThreadLine},
};

/// Longest wait for anything.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Environment variable that tells the test binary, started again, what to do.
pub(crate) const ROLE: &str = "THROTTLE_TEST_ROLE";
/// And in which group.
pub(crate) const PLACE: &str = "THROTTLE_TEST_PLACE";

/// A process has one scratch tree at a time.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} in vain for {what}");
        sleep(Duration::from_millis(2));
    }
}

/// `quota_ms` of CPU time each `period_ms`.
pub(crate) fn limited(quota_ms: u64, period_ms: u64) -> Bandwidth {
    Bandwidth { quota: Quota::Us(quota_ms * 1_000), period_us: period_ms * 1_000, burst_us: 0 }
}

/// This test binary as a workload in a group; see `workload` in the test file for the roles.
pub(crate) fn start(role: &str, group: &Group) -> Child {
    Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "workload", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .env(PLACE, group.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the test binary starts")
}

/// Waits for the end of a workload that ends by itself.
pub(crate) fn finish(mut child: Child) {
    let mut ended = None;
    until("the workload to end", || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}

/// Counted by the kernel so far.
pub(crate) fn nr_throttled(group: &Group) -> u64 {
    Counters::read(group).expect("counters").figures.nr_throttled().unwrap_or(0)
}

/// Where a case runs.
pub(crate) struct Bench {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) kernel: KernelLayout,
    pub(crate) scratch: Scratch,
    head: Head,
}

/// What is observed of it.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) unlimited: bool,
    pub(crate) ring_bytes: u32,
    /// No group is listed: of every limited group on the machine the edges are recorded, and nothing else.
    pub(crate) edges: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { unlimited: false, ring_bytes: RING_BYTES, edges: false }
    }
}

impl Bench {
    /// Groups without a limit yet.
    pub(crate) fn new(nesting: Nesting) -> Self {
        let hierarchy = Hierarchy::find().expect("a cpu controller");
        let kernel =
            prerequisites::kernel_layout(hierarchy.version).expect("a kernel that can be observed, and the right to");
        let plan = ScratchPlan { nesting, bandwidth: Bandwidth::UNLIMITED, parent: None };
        let scratch = Scratch::create(&hierarchy, &plan).expect("scratch groups; run as root");
        let environment = Environment::gather(&hierarchy, &kernel.facts);
        let head = Head {
            schema: SCHEMA,
            plan: SweepPlan { nesting, ..SweepPlan::default() },
            requirements: vec![],
            environment,
        };
        Self { hierarchy, kernel, scratch, head }
    }

    /// Ids of a group and those above it.
    pub(crate) fn path(&self, group: &Group) -> Vec<CgroupId> {
        tree::ancestors(&self.hierarchy, group).expect("a chain").iter().map(|node| CgroupId(node.id)).collect()
    }

    /// The levels of the scratch tree, leaf first.
    pub(crate) fn levels(&self) -> Vec<(LevelName, Group)> {
        self.scratch.levels().expect("levels").into_iter().map(|level| (level.level, level.group)).collect()
    }

    /// Observes `work` in the given levels, from quiet to quiet.
    pub(crate) fn observe(&self, levels: &[(LevelName, Group)], look: Look, work: impl FnOnce()) -> Observed {
        let recording = self.record(levels, look);
        // The probe learns the kernel's timers from the first switch it sees; and it must see that one.
        finish(start("burn 1 2", &levels[0].1));
        let leaf = CgroupId(levels[0].1.id().expect("an id"));
        let unlimited = levels.iter().all(|(_, group)| {
            Bandwidth::read(group).expect("read").is_none_or(|bandwidth| bandwidth.quota == Quota::Unlimited)
        });
        if look.unlimited || !unlimited {
            until("the observer to see a task", || recording.saw(leaf));
        }
        let quiet = quiet(levels);
        let begin = LimitBegin {
            limit: CpuLimit::Unlimited,
            bandwidth: Bandwidth::UNLIMITED,
            levels: readings(levels),
            paths: levels.iter().map(|(_, group)| self.path(group)).collect(),
            quiet,
            stolen_ns: stolen(),
            clock: ClockAnchor::take(),
        };
        work();
        let gone = levels.iter().any(|(_, group)| group.id().is_err());
        let end_quiet = !gone && self::quiet(levels);
        let after = (!gone).then(|| readings(levels));
        let (events, losses) = recording.stop();
        let end = LimitEnd {
            limit: begin.limit,
            levels: after,
            quiet: end_quiet,
            stolen_ns: stolen(),
            losses: losses.clone(),
            clock: ClockAnchor::take(),
            ending: Ending::Complete,
        };
        let raw = RawLimit { begin, spans: vec![], end: Some(end), kept: Kept::All };
        let mut setting = raw.setting(&self.head.environment);
        if look.edges {
            setting.followed.clear();
        }
        let timeline = Timeline::build(events.clone(), &setting);
        let derived = explain(&self.head, &raw, &timeline, &setting);
        let line = derived.lines.into_iter().find_map(|line| match line {
            RunLine::Limit(limit) => Some(*limit),
            RunLine::Request(_) | RunLine::FailedRequest { .. } => None,
        });
        Observed { line: line.expect("a limit has a line"), timeline, setting, events, losses }
    }

    fn record(&self, levels: &[(LevelName, Group)], look: Look) -> Recording {
        let listed = levels.iter().filter(|_| !look.edges);
        let plan = ObserverPlan {
            groups: listed.map(|(_, group)| (CgroupId(group.id().expect("an id")), Detail::Tasks)).collect(),
            unlisted: if look.edges { Detail::Edges } else { Detail::None },
            idle: !look.edges,
            unlimited: look.unlimited,
            ring_bytes: look.ring_bytes,
            log: false,
        };
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let observer = Observer::start(&plan, &self.kernel, &self.hierarchy, move |event| {
            sink.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        });
        Recording { observer: observer.expect("the probe loads and attaches"), events }
    }
}

struct Recording {
    observer: Observer,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Recording {
    fn saw(&self, cgroup: CgroupId) -> bool {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|event| mentions(event, cgroup))
    }

    fn stop(self) -> (Vec<Event>, Losses) {
        let losses = self.observer.stop().expect("the account of losses");
        (std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner)), losses)
    }
}

/// Whether an event is about a group.
pub(crate) fn mentions(event: &Event, cgroup: CgroupId) -> bool {
    match &event.what {
        What::Switch { prev, next, .. } => [prev, next].into_iter().flatten().any(|side| side.cgroup == cgroup),
        What::Wakeup { task, .. } => task.cgroup == cgroup,
        What::Migrate { cgroup: of, .. } | What::Exit { cgroup: of, .. } | What::Attach { cgroup: of, .. } => {
            *of == cgroup
        }
        What::Period(run) | What::Slack(run) => run.cgroup == cgroup,
        What::Queue(queue) => queue.cgroup == cgroup,
    }
}

fn quiet(levels: &[(LevelName, Group)]) -> bool {
    let groups: Vec<&Group> = levels.iter().map(|(_, group)| group).collect();
    matches!(wait_quiet(&groups, DEADLINE, || false).expect("readable"), Quietness::Quiet { .. })
}

fn readings(levels: &[(LevelName, Group)]) -> Vec<LevelReading> {
    let reading = |(level, group): &(LevelName, Group)| LevelReading {
        level: *level,
        cgroup_id: CgroupId(group.id().expect("an id")),
        counters: Counters::read(group).expect("counters"),
    };
    levels.iter().map(reading).collect()
}

/// What was seen.
pub(crate) struct Observed {
    pub(crate) line: LimitLine,
    pub(crate) timeline: Timeline,
    pub(crate) setting: Setting,
    pub(crate) events: Vec<Event>,
    pub(crate) losses: Losses,
}

impl Observed {
    /// Nothing was lost, and every figure agrees with the kernel's.
    pub(crate) fn assert_agrees(&self, case: &str) {
        let keep = || self.keep(case);
        assert_eq!(self.losses.total(), 0, "{case}: {:?}", self.losses);
        // The bench sets a limit of its own on each level and states none, so the verdict on "the" limit is not asked.
        let compared = !matches!(self.line.agreement, Agreement::NotCompared { .. }) && !self.line.checks.is_empty();
        let agrees = compared && self.line.checks.iter().all(Check::agrees);
        assert!(agrees, "{case}: {:?}, {:#?}, {}", self.line.agreement, self.line.checks, keep());
        for level in &self.line.levels {
            assert!(level.after.is_some(), "{case}");
        }
    }

    /// As [`Self::assert_agrees`] but for times: some of this case's throttles end without an event.
    pub(crate) fn assert_counts_agree(&self, case: &str) {
        assert_eq!(self.losses.total(), 0, "{case}: {:?}", self.losses);
        let counts: Vec<_> = self
            .line
            .checks
            .iter()
            .filter(|check| matches!(check.quantity, Quantity::Periods | Quantity::ThrottledPeriods))
            .collect();
        assert!(!counts.is_empty(), "{case}: nothing to compare");
        assert!(counts.iter().all(|check| check.agrees()), "{case}: {counts:#?}, {}", self.keep(case));
    }

    /// Boundaries at which a CPU was throttled by a level.
    pub(crate) fn nr_throttled(&self, level: LevelName) -> u64 {
        let line = self.line.levels.iter().find(|line| line.level == level);
        line.and_then(|line| line.observed.as_ref()).map_or(0, |observed| observed.nr_throttled)
    }

    /// A thread of a process, by what it did.
    pub(crate) fn line(&self, tid: u32) -> &ThreadLine {
        self.timeline.threads.get(&tid).unwrap_or_else(|| panic!("thread {tid} was not seen"))
    }

    /// Keeps the events of a case that failed, and says where.
    fn keep(&self, case: &str) -> String {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.jsonl", case.replace(' ', "-")));
        let lines: String =
            self.events.iter().map(|event| serde_json::to_string(event).expect("an event is JSON") + "\n").collect();
        std::fs::write(&path, lines).expect("written");
        format!("events in {}", path.display())
    }
}
