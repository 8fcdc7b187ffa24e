//! The details of the cursor: what its lane, the container's period and the request were at that instant.

use super::{App, Of};
use crate::{
    report::{
        command::{level_name, measured, ms},
        paint::Kind,
        strips::Seen,
    },
    run::picture::{RequestPicture, Span},
    time::MonoNs,
};

/// Lines about the cursor.
pub(super) fn lines(app: &App) -> Vec<String> {
    vec![lane(app), period(app), request(app), verdict(app)]
}

fn at(app: &App, at: MonoNs) -> String {
    ms(at.since(app.picture().window.start))
}

fn lane(app: &App) -> String {
    let cursor = format!("at {} ms", at(app, app.cursor));
    let Some(strip) = app.row.checked_sub(1).and_then(|row| app.strips.get(row)) else { return cursor };
    let words = match (strip.at(app.cursor), strip.of) {
        (Some((span, seen)), of) => {
            let Span { start, end } = span;
            let what = match (seen, of) {
                (Seen::Time(Kind::Own | Kind::Ancestor), Of::Level(_)) => "out of quota",
                (Seen::Time(kind), _) => kind.word(),
                (Seen::Other, _) => "other work",
            };
            format!("{what} from {} to {} ms ({} ms)", at(app, start), at(app, end), ms(span.length()))
        }
        (None, Of::Requests(_)) => "no request".to_owned(),
        (None, Of::Level(_)) => "has quota".to_owned(),
        (None, Of::Cpu(_)) => "idle".to_owned(),
        (None, Of::Thread(_)) => "unknown".to_owned(),
    };
    format!("{cursor}, {}: {words}", strip.name)
}

fn period(app: &App) -> String {
    let picture = app.picture();
    if picture.bandwidth.quota.us().is_none() {
        return "no limit, so no periods".to_owned();
    }
    let periods = picture.leaf().map_or(&[][..], |leaf| &leaf.periods);
    let place = periods.partition_point(|period| period.period.end_ns <= app.cursor);
    let Some(found) = periods.get(place).filter(|period| period.period.start_ns <= app.cursor) else {
        return "no period counted here: the timer rested".to_owned();
    };
    let period = &found.period;
    let names: Vec<&str> = found.out.iter().map(|level| level_name(level.level)).collect();
    let out = match found.out.first() {
        None => "no quota out".to_owned(),
        Some(first) => {
            format!("{} out after {} ms for {} ms", names.join("+"), ms(first.after_ns), ms(found.out_wall_ns))
        }
    };
    format!(
        "period {}: used {} of {} ms; {out}; held {} ms; idle denied {}{}",
        period.index,
        measured(period.used_ns),
        period.quota_ns.map_or_else(|| "-".to_owned(), ms),
        measured(period.held_wall_ns),
        period.denied_idle_ns.map_or_else(|| "?".to_owned(), |denied| format!("{} ms", ms(denied))),
        if period.complete { "" } else { "; not whole" }
    )
}

/// The request at the cursor, of the lane's stream if that is one of requests.
pub(super) fn request_at(app: &App) -> Option<&RequestPicture> {
    let stream = app.row.checked_sub(1).and_then(|row| app.strips.get(row)).and_then(|strip| match strip.of {
        Of::Requests(stream) => Some(stream),
        _ => None,
    });
    app.picture().requests.iter().find(|request| {
        let window = Span::new(request.line.started_ns, request.line.finished_ns);
        window.contains(app.cursor) && stream.is_none_or(|stream| request.line.stream == stream)
    })
}

fn request(app: &App) -> String {
    let Some(request) = request_at(app) else { return "no request".to_owned() };
    let share = &request.line.share;
    let parts: Vec<String> = Kind::ALL
        .into_iter()
        .filter(|kind| kind.share(&share.shares).0 > 0)
        .map(|kind| format!("{} {}", kind.word(), ms(kind.share(&share.shares))))
        .collect();
    format!("request {}: {} ms; {}", request.line.request, ms(share.wall_ns), parts.join(", "))
}

/// The cause, and the limit that would have been enough.
fn verdict(app: &App) -> String {
    use crate::{report::verdict, run::verdict::RequestVerdict};
    let Some(request) = request_at(app) else { return String::new() };
    let words = verdict::request(&RequestVerdict::of(app.picture(), request));
    let line = |name: &str| words.lines.iter().find(|(of, _)| of == name).map(|(_, words)| words.as_str());
    let parts = ["cause", "enough"].into_iter().filter_map(|name| Some(format!("{name}: {}", line(name)?)));
    parts.collect::<Vec<_>>().join("; ")
}
