//! `throttle timeline --svg`: well-formed, and its lengths are those of the report.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use crate::made::{plan, run_of, whole};

/// Pixels of the axis of time, and where it begins.
const AXIS: (f64, f64) = (150.0, 960.0 - 150.0 - 16.0);

fn svg(run: &Path, args: &[&str]) -> String {
    let file = run.join("timeline.svg");
    let mut command = Command::new(env!("CARGO_BIN_EXE_throttle"));
    let output = command.arg("timeline").arg(run).args(args).arg("--svg").arg(&file).output().expect("throttle starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty());
    fs::read_to_string(file).expect("written")
}

struct Rect {
    x: f64,
    y: f64,
    width: f64,
    fill: String,
}

fn rects(document: &roxmltree::Document<'_>) -> Vec<Rect> {
    let number = |node: &roxmltree::Node<'_, '_>, name| node.attribute(name).and_then(|text| text.parse::<f64>().ok());
    let of = |node: roxmltree::Node<'_, '_>| {
        Some(Rect {
            x: number(&node, "x")?,
            y: number(&node, "y")?,
            width: number(&node, "width")?,
            fill: node.attribute("fill")?.to_owned(),
        })
    };
    document.descendants().filter(|node| node.has_tag_name("rect")).filter_map(of).collect()
}

#[test]
fn the_figure_of_a_request_is_as_long_on_each_colour_as_the_report_says() {
    let (_dir, run) = run_of(plan(), &whole());
    let report = Command::new(env!("CARGO_BIN_EXE_throttle")).arg("report").arg(&run).output().expect("starts");
    assert_eq!(report.status.code(), Some(0));
    let runs = fs::read_to_string(run.join("runs.jsonl")).expect("derived");
    let lines = runs.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    for line in lines.filter(|line| line["type"] == "request") {
        let text = svg(&run, &["--request", &line["request"].to_string()]);
        let document = roxmltree::Document::parse(&text).expect("well-formed");
        let rects = rects(&document);
        // The second lane is the requests': below the quota's use.
        let lane = |rect: &&Rect| rect.y > 40.0 + 24.0 && rect.y < 40.0 + 48.0 && rect.x >= AXIS.0 - 1.0;
        let ns = |field: &str| line[field].as_f64().expect("ns");
        // A tenth of the request is drawn on either side.
        let per_ns = AXIS.1 / (ns("wall_ns") * 1.2);
        for (field, fill) in
            [("on_cpu_ns", "#009E73"), ("throttled_own_ns", "#D55E00"), ("throttled_ancestor_ns", "#E69F00")]
        {
            let drawn: Vec<&Rect> = rects.iter().filter(lane).filter(|rect| rect.fill == fill).collect();
            let length: f64 = drawn.iter().map(|rect| rect.width).sum();
            let expected = ns(field) * per_ns;
            // Each rectangle begins and ends on a whole pixel.
            let off = drawn.len() as f64 + 1.0;
            assert!((length - expected).abs() <= off, "{field}: {length} pixels, {expected} expected (within {off})");
        }
        let title = format!("Request {} at limit 100m: {:.1} ms,", line["request"], ns("wall_ns") / 1e6);
        assert!(document.descendants().any(|node| node.text().is_some_and(|text| text.trim().starts_with(&title))));
    }
}

#[test]
fn the_figures_of_a_limit_and_of_periods_are_well_formed_and_the_same_each_time() {
    let (_dir, run) = run_of(plan(), &whole());
    for args in [&["--limit", "100m"][..], &["--period", "10..13"], &["--slowest"]] {
        let text = svg(&run, args);
        let document = roxmltree::Document::parse(&text).expect("well-formed");
        assert!(rects(&document).len() > 10, "{args:?}");
        assert_eq!(svg(&run, args), text, "{args:?}");
    }
}

#[test]
fn lost_records_are_drawn_as_a_gap() {
    let (_dir, run) = run_of(plan(), &whole());
    let without = svg(&run, &[]);
    crate::timeline::without_event(&run);
    let with = svg(&run, &[]);
    let bands = |text: &str| {
        let document = roxmltree::Document::parse(text).expect("well-formed");
        document.descendants().filter(|node| node.attribute("opacity").is_some_and(|value| value == "0.18")).count()
    };
    assert_eq!((bands(&without), bands(&with)), (0, 1));
}
