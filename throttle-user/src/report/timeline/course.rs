//! Requests as bars: their course in time, and their shares.

use std::fmt::Write as _;

use super::at;
use crate::{
    report::{
        bar, columns,
        command::ms,
        paint::{Kind, dim, head},
        verdict::percent,
    },
    run::picture::{LimitPicture, RequestPicture, Shares, Span},
    time::DurationNs,
};

/// Characters of a bar in a table.
const SHORT: usize = 40;
/// Characters of a bar alone.
const LONG: usize = 66;

/// Column heads of [`line`].
pub(super) fn heading() -> String {
    dim("    #       at     wall  throttled  course\n")
}

/// A request in a line: number, start, wall time, throttled share, course.
pub(super) fn line(picture: &LimitPicture, request: &RequestPicture) -> String {
    let share = &request.line.share;
    let throttled =
        if picture.seen.is_none() { "?".to_owned() } else { percent(share.shares.throttled(), share.wall_ns) };
    let whole = if share.complete { ' ' } else { '!' };
    format!(
        "{:>5} {:>8} {:>8} {throttled:>9}{whole} |{}|\n",
        request.line.request,
        at(picture, request.line.started_ns),
        ms(share.wall_ns),
        in_time(request, SHORT)
    )
}

/// The slowest request of a limit in a line.
pub(super) fn short(picture: &LimitPicture, request: &RequestPicture) -> String {
    let limit = picture.limit.to_string();
    let wall = ms(request.line.share.wall_ns);
    format!("  {limit:<10} #{:<5} {wall:>8} ms  |{}|\n", request.line.request, in_time(request, SHORT))
}

/// What the characters mean.
pub(super) fn legend() -> String {
    let words: Vec<String> = Kind::ALL.iter().map(|kind| format!("{} {}", kind.mark(), kind.word())).collect();
    let text = format!("{}; a character is what most of its time was", words.join(", "));
    textwrap::wrap(&text, textwrap::Options::new(79).initial_indent("  ").subsequent_indent("  "))
        .iter()
        .map(|line| dim(line) + "\n")
        .collect()
}

/// A request alone: course in time over the period grid, shares, and a line a share.
pub(super) fn long(picture: &LimitPicture, request: &RequestPicture) -> String {
    let line = &request.line;
    let (share, shares) = (&line.share, &line.share.shares);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} ms, begun at {} ms{}",
        head(&format!("Request {}", line.request)),
        ms(share.wall_ns),
        at(picture, line.started_ns),
        share.phase_ns.map_or_else(String::new, |phase| format!(", {} ms into a period", ms(phase)))
    );
    let workers = share.workers.len();
    if workers > 1 {
        let _ =
            writeln!(text, "{workers} workers; what follows is of thread {}, which finished last", share.critical_tid);
    }
    let _ = writeln!(text, "  in time  |{}|", in_time(request, LONG));
    if !request.crossed.is_empty() {
        let _ = writeln!(text, "  periods   {}", dim(&ruler(request)));
    }
    let _ = writeln!(text, "  shares   |{}|", by_share(shares));
    for kind in Kind::ALL {
        let part = kind.share(shares);
        if part == DurationNs::ZERO {
            continue;
        }
        let mark = kind.paint(&kind.mark().to_string());
        let _ =
            writeln!(text, "    {mark} {:<24} {:>9} ms  {:>5}", kind.word(), ms(part), percent(part, share.wall_ns));
    }
    if share.throttled_both_ns != DurationNs::ZERO {
        let both = ms(share.throttled_both_ns);
        let _ = writeln!(text, "{}", dim(&format!("      own limit and an ancestor's out together: {both} ms")));
    }
    if shares.uncharged_ns != DurationNs::ZERO {
        let taken = ms(shares.uncharged_ns);
        let _ =
            writeln!(text, "{}", dim(&format!("      of the wait, taken by interrupts or a hypervisor: {taken} ms")));
    }
    text
}

/// The course, each character what most of its time was.
fn in_time(request: &RequestPicture, width: usize) -> String {
    let course = request.course.iter().map(|stretch| (stretch.span, Kind::of(stretch.doing)));
    let kinds = columns::most(course, window(request), width);
    let paint = |run: &[Option<Kind>]| {
        let kind = run[0].unwrap_or(Kind::Unknown);
        kind.paint(&kind.mark().to_string().repeat(run.len()))
    };
    kinds.chunk_by(|one, other| one == other).map(paint).collect()
}

fn window(request: &RequestPicture) -> Span {
    Span::new(request.line.started_ns, request.line.finished_ns)
}

/// A stroke where a period begins.
fn ruler(request: &RequestPicture) -> String {
    let window = window(request);
    let begins = |column: usize| {
        let part = Span::new(columns::edge(window, column, LONG), columns::edge(window, column + 1, LONG));
        request.crossed.iter().skip(1).any(|cell| part.contains(cell.span.start))
    };
    let text: String = (0..LONG).map(|column| if begins(column) { '|' } else { ' ' }).collect();
    text.trim_end().to_owned()
}

/// Shares side by side.
fn by_share(shares: &Shares) -> String {
    let parts: Vec<DurationNs> = Kind::ALL.iter().map(|kind| kind.share(shares)).collect();
    let widths = bar::parts(&parts, LONG);
    Kind::ALL.iter().zip(widths).map(|(kind, width)| kind.paint(&kind.mark().to_string().repeat(width))).collect()
}
