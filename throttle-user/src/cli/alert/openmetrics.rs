//! What Prometheus would have stored, as OpenMetrics text.

use std::fmt::Write as _;

use crate::model::{counter::Counter, history::History, poller::Poller, prometheus::Sample};

/// The four counters that alarms are made of, with a label for each load. Time stamps are those of the history, in seconds.
pub(super) fn text(histories: &[(&str, &History)], agent: &Poller, exporter: &Poller) -> String {
    let mut text = String::new();
    type Of = fn(&History) -> Counter;
    let families: [(&str, &str, &Poller, f64, Of); 4] = [
        ("container_cpu_cfs_periods", "Counted periods", agent, 1.0, |history| level(history).0),
        ("container_cpu_cfs_throttled_periods", "Throttled periods", agent, 1.0, |history| level(history).1),
        ("throttle_held_seconds", "Time in which some thread was held", exporter, 1e9, |history| {
            Counter::of_spans(&history.held)
        }),
        ("throttle_active_seconds", "Time in which some thread was active", exporter, 1e9, |history| {
            Counter::of_spans(&history.active)
        }),
    ];
    for (name, help, poller, unit, of) in families {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
        for &(load, history) in histories {
            let load = load.replace('\\', "\\\\").replace('"', "\\\"");
            for Sample { at_ms, value } in poller.poll(history).samples(&of(history), unit) {
                let Some(value) = value else { continue };
                let _ = writeln!(
                    text,
                    "{name}_total{{container=\"{load}\",pod=\"throttle\",namespace=\"throttle\"}} {value} {}.{:03}",
                    at_ms / 1_000,
                    at_ms % 1_000
                );
            }
        }
    }
    text + "# EOF\n"
}

/// Periods and throttled periods of the container.
fn level(history: &History) -> (Counter, Counter) {
    let none = || Counter::steps([]);
    history.levels.first().map_or_else(|| (none(), none()), |level| (level.periods.clone(), level.throttled.clone()))
}
