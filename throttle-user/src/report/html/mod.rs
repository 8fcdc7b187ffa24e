//! A run as one page that needs no network: figures, a timeline to zoom and pan, and a table of requests, drawn by ECharts.
//!
//! The page is the files of `assets/page`, the library of `assets/echarts`, and the pictures as JSON.

mod data;

use crate::run::{Head, picture::LimitPicture, summary::RunSummary};
use data::Page;

const TEMPLATE: &str = include_str!("../../../assets/page/page.html");
const STYLE: &str = include_str!("../../../assets/page/page.css");
const ECHARTS: &str = include_str!("../../../assets/echarts/echarts.min.js");
const SCRIPTS: [&str; 6] = [
    include_str!("../../../assets/page/format.js"),
    include_str!("../../../assets/page/lane.js"),
    include_str!("../../../assets/page/timeline.js"),
    include_str!("../../../assets/page/charts.js"),
    include_str!("../../../assets/page/requests.js"),
    include_str!("../../../assets/page/page.js"),
];

/// Renders the page of a run, or of some of its limits. The figures in its tables are those of `summary`.
///
/// # Errors
/// A value that JSON cannot hold.
pub fn page(head: &Head, summary: &RunSummary, limits: &[LimitPicture]) -> serde_json::Result<String> {
    // Inside a script element nothing may look like its end.
    let data = serde_json::to_string(&Page::new(head, summary, limits))?.replace('<', "\\u003c");
    let script = SCRIPTS.concat();
    let parts = [("{{style}}", STYLE), ("{{data}}", &data), ("{{echarts}}", ECHARTS), ("{{script}}", &script)];
    let mut page = String::with_capacity(data.len() + ECHARTS.len() + (1 << 18));
    let mut rest = TEMPLATE;
    for (mark, content) in parts {
        // In the template's order: what was put in is not looked at again.
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(content);
        rest = after;
    }
    page.push_str(rest);
    Ok(page)
}
