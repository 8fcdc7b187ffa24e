//! Numbers of the page against the report's files.

use serde_json::Value;

use crate::{chromium::Shown, made::Made};

const WIDE: (u32, u32) = (1280, 900);

fn ms(ns: &Value) -> String {
    ns.as_f64().map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns / 1e6))
}

#[test]
fn browser_the_table_of_limits_has_the_numbers_of_the_summary() {
    let made = Made::two_limits();
    let page = Shown::open(&made.page, WIDE);
    let summary = made.summary();
    let rows = summary["limits"].as_array().expect("limits");
    let shown: usize = page.value("document.querySelectorAll('#summary tbody tr').length");
    assert_eq!(shown, rows.len());
    for row in rows {
        let limit = row["limit"].as_str().expect("a limit");
        let cell = |field: &str| page.text(&format!("#summary tr[data-row='{limit}'] td[data-field='{field}']"));
        for field in [
            "p50_ns",
            "p99_ns",
            "max_ns",
            "throttled_wall_ns",
            "throttled_own_ns",
            "throttled_ancestor_ns",
            "kernel_container_only_ns",
        ] {
            assert_eq!(cell(field), ms(&row[field]), "{field} of {limit}");
        }
        assert_eq!(cell("agreement"), row["agreement"]["verdict"].as_str().expect("a verdict").replace('_', " "));
        assert_eq!(cell("n"), row["n"].to_string());
        if let Some(held) = row["throttled_periods"].as_u64() {
            assert!(cell("throttled_periods").starts_with(&format!("{held}/{}", row["counted_periods"])));
        }
    }
    page.assert_quiet();
}

#[test]
fn browser_the_bars_of_the_latency_figure_are_as_high_as_the_summary_says() {
    let made = Made::two_limits();
    let page = Shown::open(&made.page, WIDE);
    let summary = made.summary();
    // The bars by their colour, from left to right, in pixels: top, height.
    let bars: Vec<(f64, f64)> = page.value(
        "[...document.querySelectorAll('#f-latency svg path[fill=\"#0072b2\"]')].map((path) => path.getBBox())\
         .filter((box) => box.width > 4 && box.y > 66).sort((a, b) => a.x - b.x).map((box) => [box.y, box.height])",
    );
    // The axis by two of its labels.
    let labels: Vec<(f64, f64)> = page.value(
        "[...document.querySelectorAll('#f-latency svg text')].filter((text) => /^[0-9,]+$/.test(text.textContent) \
         && text.getAttribute('text-anchor') === 'end').map((text) => [parseFloat(text.textContent.replace(',', '')), \
         text.getBoundingClientRect().y + text.getBoundingClientRect().height / 2 - \
         document.querySelector('#f-latency svg').getBoundingClientRect().y])",
    );
    let (low, high) = (labels.first().expect("labels"), labels.last().expect("labels"));
    let per_ms = (high.1 - low.1) / (high.0 - low.0);
    let at = |value: f64| low.1 + (value - low.0) * per_ms;
    let rows = summary["limits"].as_array().expect("limits");
    assert_eq!(bars.len(), rows.len(), "{bars:?}");
    for (row, (top, height)) in rows.iter().zip(bars) {
        let value = |field: &str| row[field].as_f64().expect("ns") / 1e6;
        assert!((top - at(value("max_ns"))).abs() <= 2.0, "{}: top at {top}, {}", row["limit"], at(value("max_ns")));
        let bottom = at(value("p50_ns"));
        // A bar without a height is drawn two pixels high.
        assert!((top + height - bottom).abs() <= 2.5, "{}: bottom at {}, {bottom}", row["limit"], top + height);
    }
}

#[test]
fn browser_the_table_of_requests_has_the_reports_numbers_and_sorts_by_each_column() {
    let made = Made::two_limits();
    let page = Shown::open(&made.page, WIDE);
    page.click("#tabs button[data-limit='200m']");
    let requests = made.requests("200m");
    for request in &requests {
        let number = &request["request"];
        let cell = |field: &str| page.text(&format!("#requests tr[data-request='{number}'] td[data-field='{field}']"));
        assert_eq!(cell("wall"), ms(&request["wall_ns"]));
        assert_eq!(cell("cpu"), ms(&request["cpu_time_ns"]));
        assert_eq!(cell("wait"), ms(&request["runqueue_ns"]));
        assert_eq!(cell("phase"), ms(&request["phase_ns"]));
        assert_eq!(cell("periods"), format!("{}/{}", request["throttled_periods"], request["periods"]));
        let throttled = ns(request, "throttled_own_ns") + ns(request, "throttled_ancestor_ns");
        assert_eq!(cell("throttled"), format!("{:.1}", throttled / 1e6));
    }
    let order = || -> Vec<u64> {
        page.value("[...document.querySelectorAll('#requests tbody tr')].map((row) => Number(row.dataset.request))")
    };
    let expected = |of: &dyn Fn(&Value) -> f64| {
        let mut numbers: Vec<(f64, u64)> =
            requests.iter().map(|line| (of(line), line["request"].as_u64().expect("a number"))).collect();
        numbers.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        numbers.into_iter().map(|(_, number)| number).collect::<Vec<_>>()
    };
    page.click("#requests th[data-field='wall'] button");
    assert_eq!(order(), expected(&|line| ns(line, "wall_ns")));
    page.click("#requests th[data-field='share'] button");
    let share = |line: &Value| (ns(line, "throttled_own_ns") + ns(line, "throttled_ancestor_ns")) / ns(line, "wall_ns");
    assert_eq!(order(), expected(&share));
    let sorted: String =
        page.value("document.querySelector('#requests th[data-field=share]').getAttribute('aria-sort')");
    assert_eq!(sorted, "descending");
    page.click("#requests th[data-field='share'] button");
    assert_eq!(order().last(), expected(&share).first());
    page.assert_quiet();
}

fn ns(line: &Value, field: &str) -> f64 {
    line[field].as_f64().expect("ns")
}
