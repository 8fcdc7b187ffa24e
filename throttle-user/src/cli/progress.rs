//! The progress bar of verbs that know how far they are.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on stderr; `length` = `None`: a count without an end.
pub(super) fn bar(hidden: bool, length: Option<u64>, template: &str) -> ProgressBar {
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(length, target);
    // A template that indicatif refused would leave its own default, which serves as well.
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
