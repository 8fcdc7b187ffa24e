//! The interval log (`.hlog`): compressed V2 histograms, one line an interval, for HdrHistogram's log tools.
//!
//! Owns cutting a run into intervals. Each interval holds up to three lines: untagged the latency from the due time
//! (what tools show unless told otherwise), and under the tags `service` and `wall` the other two. Values are
//! nanoseconds. Lines are flushed as intervals end, so a killed run leaves all but its last.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, IntervalLogWriterError, Tag};

use super::latency::{LatencyRecord, Lengths};
use crate::request::RequestSpan;
use crate::time::{ClockAnchor, DurationNs, MonoNs};

/// An interval log being written.
#[derive(Debug)]
pub struct IntervalLog<W> {
    out: W,
    length: DurationNs,
    base: MonoNs,
    interval_start: MonoNs,
    record: LatencyRecord,
}

impl<W: Write> IntervalLog<W> {
    /// Begins a log whose intervals are `length` long and are counted from `start`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(mut out: W, anchor: &ClockAnchor, start: MonoNs, length: DurationNs) -> io::Result<Self> {
        let start_time = wall_clock(anchor.realtime_ns(start));
        IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment("values and Interval_Max in nanoseconds; untagged: latency from the due time")
            .with_start_time(start_time)
            .with_base_time(start_time)
            .begin_log_with(&mut out, &mut V2DeflateSerializer::new())?;
        writeln!(out, "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"")?;
        Ok(Self { out, length, base: start, interval_start: start, record: LatencyRecord::default() })
    }

    /// Counts a request into the interval its answer came in; requests are to come in order of their answers.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn record(&mut self, span: &RequestSpan) -> io::Result<()> {
        let passed = span.received_ns.since(self.interval_start).0 / self.length.0.max(1);
        if passed > 0 {
            self.end_interval(self.length)?;
            self.interval_start = self.interval_start + DurationNs(passed * self.length.0);
        }
        self.record.record(span);
        Ok(())
    }

    /// Ends the log: writes the interval in hand, shortened to `end`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self, end: MonoNs) -> io::Result<W> {
        self.end_interval(end.since(self.interval_start).min(self.length))?;
        Ok(self.out)
    }

    fn end_interval(&mut self, length: DurationNs) -> io::Result<()> {
        let start = Duration::from_nanos(self.interval_start.since(self.base).0);
        let length = Duration::from_nanos(length.0);
        let LatencyRecord { wall, service, latency, .. } = &mut self.record;
        for (lengths, tag) in [(latency, None), (service, Tag::new("service")), (wall, Tag::new("wall"))] {
            if lengths.count() > 0 {
                write_line(&mut self.out, lengths, start, length, tag)?;
                lengths.reset();
            }
        }
        self.out.flush()
    }
}

/// Writes one line. A writer without headers writes none, so one can be made for every line.
fn write_line(
    out: &mut impl Write,
    lengths: &Lengths,
    start: Duration,
    length: Duration,
    tag: Option<Tag<'_>>,
) -> io::Result<()> {
    IntervalLogWriterBuilder::new()
        .begin_log_with(out, &mut V2DeflateSerializer::new())?
        .write_histogram(lengths.histogram(), start, length, tag)
        .map_err(|error| match error {
            IntervalLogWriterError::IoError(cause) => cause,
            IntervalLogWriterError::SerializeError(cause) => io::Error::other(cause),
        })
}

fn wall_clock(realtime_ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(realtime_ns)
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;
    use crate::request::{Outcome, ServerSpan, WorkerSpan};

    const ANCHOR: ClockAnchor = ClockAnchor {
        monotonic_ns: 1_000_000_000,
        boottime_ns: 1_000_000_000,
        realtime_ns: 1_700_000_000_000_000_000,
        error_ns: 0,
    };

    /// A request due, sent and received at these milliseconds, with a wall time of 1 ms.
    fn span(due: u64, sent: u64, received: u64) -> RequestSpan {
        let at = |ms: u64| MonoNs(ms * 1_000_000);
        let worker =
            WorkerSpan { tid: 7, started_ns: at(0), finished_ns: at(1), cpu_time_ns: DurationNs::from_millis(1) };
        let server = ServerSpan {
            accepted_ns: at(0),
            started_ns: at(0),
            finished_ns: at(1),
            work_ns: DurationNs::from_millis(1),
            workers: vec![worker],
        };
        let outcome = Outcome::Ok { server };
        RequestSpan { request: 0, stream: 0, due_ns: at(due), sent_ns: at(sent), received_ns: at(received), outcome }
    }

    /// Start and length in ms, tag, and the decoded histogram of each interval line.
    fn read(log: &[u8]) -> Vec<(u128, u128, Option<String>, Histogram<u64>)> {
        IntervalLogIterator::new(log)
            .filter_map(|entry| match entry.expect("a readable line") {
                LogEntry::Interval(line) => {
                    use base64::Engine as _;
                    let bytes =
                        base64::engine::general_purpose::STANDARD.decode(line.encoded_histogram()).expect("base64");
                    let histogram = Deserializer::new().deserialize(&mut &bytes[..]).expect("a histogram");
                    let tag = line.tag().map(|tag| tag.as_str().to_owned());
                    Some((line.start_timestamp().as_millis(), line.duration().as_millis(), tag, histogram))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_log_read_back_holds_what_was_recorded_interval_by_interval() {
        let start = MonoNs(1_000_000_000);
        let mut log = IntervalLog::begin(Vec::new(), &ANCHOR, start, DurationNs::from_millis(1_000)).expect("begins");
        for span in [span(1_000, 1_010, 1_200), span(1_300, 1_300, 1_999), span(4_000, 4_000, 4_100)] {
            log.record(&span).expect("records");
        }
        let bytes = log.finish(MonoNs(4_500_000_000)).expect("finishes");
        let text = String::from_utf8(bytes.clone()).expect("text");
        assert!(text.contains("#[StartTime: 1700000000.000 (seconds since epoch)]"), "{text}");
        let lines = read(&bytes);
        let heads: Vec<_> =
            lines.iter().map(|(start, length, tag, h)| (*start, *length, tag.as_deref(), h.len())).collect();
        assert_eq!(
            heads,
            [
                (0, 1_000, None, 2),
                (0, 1_000, Some("service"), 2),
                (0, 1_000, Some("wall"), 2),
                (3_000, 500, None, 1),
                (3_000, 500, Some("service"), 1),
                (3_000, 500, Some("wall"), 1),
            ]
        );
        let holds = |line: usize, ms: u64| lines[line].3.count_at(ms * 1_000_000) == 1;
        assert!(holds(0, 200) && holds(0, 699), "latency counts from the due time");
        assert!(holds(1, 190) && holds(1, 699), "service time from the sending");
        assert!(holds(3, 100) && holds(5, 1));
    }

    #[test]
    fn a_run_without_answers_leaves_a_log_without_intervals() {
        let log = IntervalLog::begin(Vec::new(), &ANCHOR, MonoNs(0), DurationNs::from_millis(1_000)).expect("begins");
        assert!(read(&log.finish(MonoNs(5)).expect("finishes")).is_empty());
    }
}
