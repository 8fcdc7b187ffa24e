//! What the tests start this binary for, in its own process.

use std::{
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use throttle_user::{
    time::DurationNs,
    workload::{Burner, join_cgroup},
};

use crate::observed::{PLACE, ROLE};

/// Plays the role the environment names, in the group it names.
pub(crate) fn play() {
    let role = std::env::var(ROLE).expect("started by a test");
    let place = std::env::var(PLACE).expect("started by a test");
    join_cgroup(Path::new(&place)).expect("the group takes this process");
    let words: Vec<&str> = role.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let burner = Burner::calibrate();
    match words[0] {
        "burn" => together(number(1), || {
            burner.burn(DurationNs::from_millis(number(2)));
        }),
        // One or more burn while another wakes every half millisecond.
        "doze" => {
            let sleeper = thread::spawn(move || {
                for _ in 0..600 {
                    burner.burn(DurationNs::from_micros(50));
                    thread::sleep(Duration::from_micros(500));
                }
            });
            together(number(1), || {
                burner.burn(DurationNs::from_millis(number(2)));
            });
            sleeper.join().expect("the sleeper ends");
        }
        // Idle for a period, then more than a quota at once.
        "bursts" => {
            for _ in 0..number(1) {
                burner.burn(DurationNs::from_millis(45));
                thread::sleep(Duration::from_millis(110));
            }
        }
        // From CPU to CPU all the time, by its own wish.
        "roam" => {
            for turn in 0..number(1) {
                stay_on(usize::try_from(turn % 2).expect("0 or 1"));
                burner.burn(DurationNs::from_millis(5));
            }
        }
        // One burns on a CPU. Others wake up, on that CPU to a queue that is throttled, on the next one to a queue that has nothing left
        // and gets nothing.
        "enqueue" => {
            let sleepers = [0, 1].map(|cpu| {
                thread::spawn(move || {
                    stay_on(cpu);
                    for _ in 0..60 {
                        burner.burn(DurationNs::from_micros(300));
                        thread::sleep(Duration::from_millis(11));
                    }
                })
            });
            stay_on(0);
            burner.burn(DurationNs::from_millis(number(1)));
            for sleeper in sleepers {
                sleeper.join().expect("the sleeper ends");
            }
        }
        // Bursts mostly too short to draw on the pool, now and then one that uses it up, and rests.
        "mixed" => {
            let until = Instant::now() + Duration::from_secs(number(1));
            let mut dice = 1_u64;
            while Instant::now() < until {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let roll = dice >> 33;
                let (work_us, rest_us) = match roll % 100 {
                    0..2 => (60_000, 1_000),
                    2..4 => (1_200, 250_000),
                    4..30 => (50 + roll % 400, 30_000 + roll % 90_000),
                    _ => (50 + roll % 900, 500 + roll % 4_000),
                };
                burner.burn(DurationNs::from_micros(work_us));
                thread::sleep(Duration::from_micros(rest_us));
            }
        }
        "real-time" => {
            let pid = std::process::id().to_string();
            let done = std::process::Command::new("chrt").args(["-a", "-f", "-p", "1", &pid]).status();
            assert!(done.expect("chrt starts").success(), "chrt refuses");
            burner.burn(DurationNs::from_millis(number(1)));
        }
        // Two threads wake each other as fast as they can.
        "storm" => {
            let (ping, pinged) = mpsc::sync_channel::<()>(0);
            let (pong, ponged) = mpsc::sync_channel::<()>(0);
            let other = thread::spawn(move || while pinged.recv().is_ok() && pong.send(()).is_ok() {});
            let started = Instant::now();
            for _ in 0..number(1) {
                ping.send(()).expect("the other listens");
                ponged.recv().expect("the other answers");
                if started.elapsed() > Duration::from_secs(5) {
                    break;
                }
            }
            drop(ping);
            other.join().expect("the other ends");
        }
        other => panic!("no such role: {other}"),
    }
}

/// Binds this thread to a CPU; where there is none of this number, to the first.
fn stay_on(cpu: usize) {
    // Not `available_parallelism`, which takes a CPU limit for fewer CPUs.
    let cpus = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
    let mut set = nix::sched::CpuSet::new();
    set.set(if i64::try_from(cpu).is_ok_and(|cpu| cpu < cpus) { cpu } else { 0 }).expect("a CPU number");
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("it may choose its CPU");
}

fn together(threads: u64, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}
