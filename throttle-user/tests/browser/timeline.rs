//! The timeline of the page: what it tells of an instant, and how it moves.

use serde_json::Value;

use crate::{chromium::Shown, made::Made};

const WIDE: (u32, u32) = (1280, 900);

fn open(made: &Made) -> Shown {
    let page = Shown::open(&made.page, WIDE);
    page.click("#tabs button[data-limit='200m']");
    page
}

/// Window of the timeline, us.
fn window(page: &Shown) -> (f64, f64) {
    page.value("page.timeline.shown()")
}

/// Where an instant of a lane is on the screen.
fn place(page: &Shown, us: f64, row: usize) -> (f64, f64) {
    let at = format!(
        "(() => {{ const box = document.getElementById('timeline').getBoundingClientRect(); \
         const [x, y] = page.timeline.chart.convertToPixel({{xAxisIndex: 0, yAxisIndex: 0}}, [{us}, {row}]); \
         return [box.x + x, box.y + y]; }})()"
    );
    page.value(&at)
}

/// Periods of the container, with their place on the page's axis of time.
fn periods(made: &Made) -> Vec<(Value, f64)> {
    let record = std::fs::read_to_string(made.run.join("raw/record.jsonl")).expect("the record");
    let begin: Value = record
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .find(|line| line["type"] == "limit_begin" && line["limit"] == "200m")
        .expect("it began");
    let read = |level: &Value| level["counters"]["read_until_ns"].as_u64().expect("a stamp");
    let zero = begin["levels"].as_array().expect("levels").iter().map(read).max().expect("a level");
    let of = |line: &Value| line["limit"] == "200m" && line["level"] == "container";
    let at = |line: &Value| {
        let (start, end) = (line["start_ns"].as_u64().expect("a stamp"), line["end_ns"].as_u64().expect("a stamp"));
        (i128::from(start.midpoint(end)) - i128::from(zero)) as f64 / 1e3
    };
    let lines = made.lines("periods.jsonl").into_iter().filter(of);
    lines.map(|line| (line.clone(), at(&line))).filter(|(_, at)| *at > 0.0).collect()
}

#[test]
fn browser_pointing_at_a_period_tells_the_reports_figures_of_it() {
    let made = Made::two_limits();
    let page = open(&made);
    page.run("document.getElementById('timeline').scrollIntoView({block: 'center'})");
    for (line, us) in periods(&made) {
        page.point_at(place(&page, us, 0));
        let told = page.text("#details");
        let ms = |field: &str| format!("{:.1}", line[field].as_f64().expect("ns") / 1e6);
        let used = format!("period {}: used {} ms of {} ms", line["index"], ms("used_ns"), ms("quota_ns"));
        assert!(told.contains(&used), "{used}: {told}");
        assert!(told.contains(&format!("held for {} ms", ms("held_wall_ns"))), "{told}");
        match line["denied_idle_ns"].as_f64() {
            Some(_) => assert!(told.contains(&format!("idle CPU denied: {} ms", ms("denied_idle_ns"))), "{told}"),
            None => assert!(told.contains("idle CPU denied: not measured"), "{told}"),
        }
    }
    page.assert_quiet();
}

#[test]
fn browser_the_timeline_zooms_moves_and_jumps_by_keys_buttons_and_mouse() {
    let made = Made::two_limits();
    let page = open(&made);
    let whole = window(&page);
    page.click("#timeline");
    page.run("document.getElementById('timeline').focus()");
    page.press("+");
    page.press("+");
    let near = window(&page);
    assert!((near.1 - near.0 - (whole.1 - whole.0) / 4.0).abs() < 1.0, "{near:?} of {whole:?}");
    page.press("ArrowRight");
    let later = window(&page);
    assert!(later.0 > near.0 && (later.1 - later.0 - (near.1 - near.0)).abs() < 1.0, "{later:?} after {near:?}");
    page.press("0");
    assert_eq!(window(&page), whole);
    // From one throttle to the next: the cursor is where a level ran out.
    let out: Vec<f64> =
        page.value("page.limit.levels.flatMap((level) => level.out_us.map(([from]) => from)).sort((a, b) => a - b)");
    page.run("page.timeline.cursor = null");
    page.press("n");
    let first: f64 = page.value("page.timeline.cursor");
    page.press("n");
    let second: f64 = page.value("page.timeline.cursor");
    assert_eq!(first, out[0]);
    assert!(second > first && out.contains(&second));
    page.press("p");
    assert_eq!(page.value::<f64>("page.timeline.cursor"), first);
    let (from, to) = window(&page);
    assert!(from <= first && first <= to);
    // The slowest request.
    page.click("[data-do='slow']");
    let requests = made.requests("200m");
    let longest = requests.iter().filter_map(|line| line["wall_ns"].as_u64()).max().expect("a request");
    let told = page.text("#details");
    assert!(told.contains(&format!("{:.1} ms;", longest as f64 / 1e6)), "{told}");
    // Dragging moves the window by as much as the mouse.
    let before = window(&page);
    page.run("document.getElementById('timeline').scrollIntoView({block: 'center'})");
    let middle = before.0.midpoint(before.1);
    let (x, y) = place(&page, middle, 1);
    page.drag((x, y), (x - 120.0, y));
    let after = window(&page);
    let (moved, _) = place(&page, middle, 1);
    assert!(after.0 > before.0 && (x - moved - 120.0).abs() < 12.0, "{before:?} {after:?}, {} pixels", x - moved);
    page.assert_quiet();
}

#[test]
fn browser_a_column_of_a_lane_is_what_most_of_its_time_was() {
    let made = Made::two_limits();
    let page = open(&made);
    // Against counting: random courses, windows and widths.
    let wrong: Vec<String> = page.value(
        "(() => { const wrong = []; let seed = 7; \
         const random = (n) => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed % n; }; \
         for (let round = 0; round < 200; round++) { \
           const course = []; const n = 1 + random(500); \
           for (let i = 0; i < n; i++) course.push(1 + random(30), random(10)); \
           const lane = Lane.ofCourse({ name: '', from_us: 0, course, merged_us: 0 }); \
           const total = lane.edges[n]; const from = random(total); const to = from + 1 + random(total - from); \
           const columns = 1 + random(60); const found = lane.visible(from, to, columns); \
           let width = 0; found.forEach((pairs) => { for (let i = 1; i < pairs.length; i += 2) width += pairs[i]; }); \
           const expected = columns * Math.min(1, (Math.min(to, total) - from) / (to - from)); \
           if (Math.abs(width - expected) > 1e-6) wrong.push(`round ${round}: ${width} of ${expected} columns`); \
           const first = Math.max(0, above(lane.edges, from) - 1), last = Math.min(n - 1, above(lane.edges, to) - 1); \
           if (last - first < columns) continue; \
           for (let column = 0; column < columns; column++) { \
             const times = new Array(FIRST_THREAD).fill(0); \
             const begin = from + (column * (to - from)) / columns, end = from + ((column + 1) * (to - from)) / columns; \
             for (let i = 0; i < n; i++) { const time = Math.min(end, lane.edges[i + 1]) - Math.max(begin, lane.edges[i]); \
               if (time > 0) times[Lane.drawn(lane.kinds[i])] += time; } \
             let drawn = -1; found.forEach((pairs, kind) => { for (let i = 0; i < pairs.length; i += 2) \
               if (pairs[i] <= column + 0.5 && column + 0.5 < pairs[i] + pairs[i + 1]) drawn = kind; }); \
             if (drawn < 0 || Math.max(...times) - times[drawn] > 1e-6) wrong.push(`round ${round} column ${column}: ${drawn} of ${times}`); \
           } } return wrong; })()",
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn browser_an_hour_of_periods_is_drawn_by_no_more_shapes_than_columns() {
    let made = Made::two_limits();
    let page = open(&made);
    // The limit's own periods, requests and lanes, one after the other until it is an hour.
    page.run(
        "const [limit, whole] = [page.limit, structuredClone(page.limit)]; \
         const times = Math.ceil(3.6e9 / whole.length_us); \
         for (let i = 1; i < times; i++) { const by = whole.length_us * i; \
           limit.levels.forEach((level, at) => { const of = whole.levels[at]; \
             for (const column in level.periods) { const moved = /^(from|to)_us$/.test(column) ? by : 0; \
               for (const value of of.periods[column]) level.periods[column].push(value + moved); } \
             for (const [from, to] of of.out_us) level.out_us.push([from + by, to + by]); }); \
           ['threads', 'cpus'].forEach((lanes) => limit[lanes].forEach((lane, at) => { \
             for (const value of whole[lanes][at].course) lane.course.push(value); })); \
           for (const request of whole.requests) limit.requests.push({ ...request, from_us: request.from_us + by }); } \
         limit.length_us *= times; page.select(limit);",
    );
    let periods: usize = page.value("page.limit.levels[0].periods.index.length");
    let each: usize = page.value("page.limit.period_ns / 1e3");
    assert!(periods > 3_600_000_000 / each / 4, "{periods} periods of {each} us");
    // Of the whole hour, and of parts of it: rectangles of each lane, and columns there are.
    let drawn: Vec<(String, usize, usize)> = page.value(
        "[1, 10, 100, 1000, 10000].flatMap((part) => { \
         const columns = 1200, to = page.timeline.length / part; \
         return page.timeline.lanes.map(({ lane, kind }) => { const found = lane.visible(0, to, columns); \
           return [`${lane.name} / ${part}`, kind === 'periods' ? found.length : found.reduce((sum, pairs) => sum + pairs.length / 2, 0), columns]; }); })",
    );
    let many: Vec<_> = drawn.iter().filter(|(_, shapes, columns)| shapes > columns).collect();
    assert!(many.is_empty(), "{many:?}");
    assert!(drawn.iter().any(|(name, shapes, _)| name == "requests / 1" && *shapes > 0), "{drawn:?}");
    page.press("n");
    page.assert_quiet();
}
