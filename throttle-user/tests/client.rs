//! The load client against servers that answer, refuse, hang and die.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::ControlFlow;

use throttle_user::client::{ClientError, End, LoadPlan, LoadReport, Pace, Spacing, Target, drive};
use throttle_user::request::{FanOut, Outcome, RequestSpan, ServerSpan, WorkSpec, WorkerSpan};
use throttle_user::time::{DurationNs, MonoNs};
use throttle_user::workload::{BurnDefaults, Burner, Server, ServerOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn burn_server(workers: u32) -> Target {
    let defaults = BurnDefaults { work_ns: DurationNs::from_millis(1), threads: 1, fan_out: FanOut::Split };
    let options = ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), workers, defaults };
    let server = Server::bind(&options, Burner::calibrate()).await.expect("binds");
    let target = Target::parse(&format!("http://{}", server.address())).expect("a target");
    tokio::spawn(server.serve(std::future::pending()));
    target
}

/// A server that gives the `answers` in turn over as many connections as it takes, then closes everything.
async fn scripted_server(answers: Vec<String>) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let target = Target::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a target");
    tokio::spawn(async move {
        let mut answers = answers.into_iter().peekable();
        while answers.peek().is_some() {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            while answers.peek().is_some() && read_request(&mut stream).await {
                let answer = answers.next().expect("peeked");
                stream.write_all(answer.as_bytes()).await.expect("answers");
            }
        }
    });
    target
}

/// Reads one request; `false` when the client closed instead.
async fn read_request(stream: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return false,
        }
    }
    true
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn good_answer() -> String {
    let worker = WorkerSpan { tid: 1, started_ns: MonoNs(1), finished_ns: MonoNs(2), cpu_time_ns: DurationNs(1) };
    let span = ServerSpan {
        accepted_ns: MonoNs(0),
        started_ns: MonoNs(1),
        finished_ns: MonoNs(2),
        work_ns: DurationNs(1),
        workers: vec![worker],
    };
    http("200 OK", &serde_json::to_string(&span).expect("json"))
}

fn plan(pace: Pace, requests: u64) -> LoadPlan {
    LoadPlan { pace, end: End { requests: Some(requests), duration: None }, ..LoadPlan::default() }
}

fn closed(streams: u32, gap_ms: u64) -> Pace {
    Pace::Closed {
        streams: NonZeroU32::new(streams).expect("a stream"),
        gap: DurationNs::from_millis(gap_ms),
        spread: DurationNs::ZERO,
    }
}

fn open(interval_ms: u64) -> Pace {
    Pace::Open { spacing: Spacing::every(DurationNs::from_millis(interval_ms)).expect("an interval") }
}

async fn collect(plan: &LoadPlan, target: &Target) -> (Vec<RequestSpan>, Result<LoadReport, ClientError>) {
    let mut spans = Vec::new();
    let ended = drive(plan, target, |span| {
        spans.push(span);
        ControlFlow::Continue(())
    })
    .await;
    (spans, ended)
}

/// The errors of the requests that failed.
fn failed(spans: &[RequestSpan]) -> Vec<&str> {
    spans
        .iter()
        .filter_map(|span| match &span.outcome {
            Outcome::Failed { error } => Some(error.as_str()),
            Outcome::Ok { .. } => None,
        })
        .collect()
}

#[tokio::test]
async fn one_stream_sends_in_turn_and_waits_the_gap() {
    let target = burn_server(1).await;
    let (spans, ended) = collect(&plan(closed(1, 3), 5), &target).await;
    assert_eq!(ended.expect("runs").requests, 5);
    assert_eq!(spans.iter().map(|span| span.request).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for pair in spans.windows(2) {
        assert!(pair[1].sent_ns >= pair[0].received_ns + DurationNs::from_millis(3), "{pair:?}");
    }
    for span in &spans {
        assert_eq!(span.due_ns, span.sent_ns, "a closed loop is due when it sends");
        let Outcome::Ok { server } = &span.outcome else { panic!("{span:?}") };
        assert!(span.sent_ns <= server.accepted_ns && server.finished_ns <= span.received_ns, "{span:?}");
    }
}

#[tokio::test]
async fn streams_share_the_requests_out_between_them() {
    let target = burn_server(3).await;
    let (spans, ended) = collect(&plan(closed(3, 1), 20), &target).await;
    assert_eq!(ended.expect("runs").requests, 20);
    let mut numbers: Vec<u64> = spans.iter().map(|span| span.request).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    for stream in 0..3 {
        assert!(spans.iter().any(|span| span.stream == stream), "stream {stream} sent nothing");
    }
}

#[tokio::test]
async fn the_work_asked_for_is_the_work_done() {
    let target = burn_server(2).await;
    let work = WorkSpec { work_ns: Some(DurationNs::from_millis(4)), threads: Some(2), fan_out: Some(FanOut::Whole) };
    let (spans, _) = collect(&LoadPlan { work, ..plan(closed(1, 0), 1) }, &target).await;
    let Outcome::Ok { server } = &spans[0].outcome else { panic!("{spans:?}") };
    assert_eq!((server.work_ns, server.workers.len()), (DurationNs::from_millis(8), 2));
}

#[tokio::test]
async fn an_open_loop_keeps_its_due_times_whatever_the_server_does() {
    let target = burn_server(1).await;
    // Work longer than the interval on one worker: the server falls behind, the schedule must not.
    let work = WorkSpec { work_ns: Some(DurationNs::from_millis(12)), ..WorkSpec::default() };
    let (mut spans, ended) = collect(&LoadPlan { work, ..plan(open(4), 10) }, &target).await;
    let start = ended.expect("runs").started_ns;
    spans.sort_by_key(|span| span.request);
    for (number, span) in (0..).zip(&spans) {
        assert_eq!(span.due_ns, start + DurationNs::from_millis(4 * number));
        assert!(span.sent_ns >= span.due_ns);
    }
    let last = &spans[9];
    assert!(last.latency() > DurationNs::from_millis(36), "the last waited for those before it: {last:?}");
}

#[tokio::test]
async fn with_too_few_connections_an_open_loop_sends_late_and_says_so() {
    let target = burn_server(1).await;
    let work = WorkSpec { work_ns: Some(DurationNs::from_millis(12)), ..WorkSpec::default() };
    let plan = LoadPlan { work, connections: NonZeroU32::MIN, ..plan(open(2), 6) };
    let (spans, ended) = collect(&plan, &target).await;
    assert_eq!(ended.expect("runs").failed, 0);
    assert!(spans.iter().all(|span| span.stream == 0));
    let last = &spans[5];
    assert!(last.sent_ns.since(last.due_ns) > DurationNs::from_millis(36), "{last:?}");
    assert!(last.latency() > last.service_time());
}

#[tokio::test]
async fn a_duration_ends_the_run_without_a_count() {
    let target = burn_server(1).await;
    let end = End { requests: None, duration: Some(DurationNs::from_millis(40)) };
    let (spans, ended) = collect(&LoadPlan { end, ..plan(open(10), 0) }, &target).await;
    assert_eq!((spans.len(), ended.expect("runs").requests), (4, 4), "due at 0, 10, 20 and 30 ms");
}

#[tokio::test]
async fn a_server_that_dies_midway_ends_the_run_and_what_was_measured_is_kept() {
    let target = scripted_server(vec![good_answer(); 4]).await;
    let (spans, ended) = collect(&plan(closed(1, 0), 100), &target).await;
    let error = ended.expect_err("the server is gone");
    assert!(matches!(error, ClientError::ServerGone { failures: 3, .. }), "{error:?}");
    let report = error.report().expect("it had begun");
    assert_eq!((report.requests, report.failed, spans.len()), (7, 3, 7));
    let text = error.to_string();
    assert!(text.contains(&target.authority()) && text.contains("after 4 answers"), "{text}");
    for error in failed(&spans) {
        assert!(error.contains(&target.authority()), "{error}");
    }
    assert!(failed(&spans)[2].contains("refused"), "{spans:?}");
}

#[tokio::test]
async fn an_open_loop_notices_a_dead_server_as_well() {
    let target = scripted_server(vec![good_answer(); 2]).await;
    let (spans, ended) = collect(&plan(open(1), 100_000), &target).await;
    assert!(matches!(ended, Err(ClientError::ServerGone { .. })), "{ended:?}");
    assert!(failed(&spans).len() >= 3);
}

#[tokio::test]
async fn nobody_listening_is_told_before_anything_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let target = Target::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a target");
    drop(listener);
    let (spans, ended) = collect(&plan(closed(1, 0), 5), &target).await;
    let error = ended.expect_err("nobody there");
    assert!(matches!(error, ClientError::Unreachable { .. }) && error.report().is_none() && spans.is_empty());
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_connection_closed_between_requests_is_opened_again() {
    let closing = good_answer().replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let target = scripted_server(vec![closing, good_answer(), good_answer()]).await;
    let (spans, ended) = collect(&plan(closed(1, 1), 3), &target).await;
    assert_eq!(ended.expect("runs").failed, 0, "{spans:?}");
}

#[tokio::test]
async fn a_server_error_fails_one_request_and_the_run_goes_on() {
    let trouble = http("500 Internal Server Error", r#"{"error":"a worker thread ended"}"#);
    let target = scripted_server(vec![good_answer(), trouble, good_answer()]).await;
    let (spans, ended) = collect(&plan(closed(1, 0), 3), &target).await;
    let report = ended.expect("runs");
    assert_eq!((report.requests, report.failed), (3, 1));
    assert!(failed(&spans)[0].contains("500 Internal Server Error: a worker thread ended"), "{spans:?}");
}

#[tokio::test]
async fn a_refused_parameter_ends_the_run_with_the_servers_own_words() {
    let target = burn_server(1).await;
    let work = WorkSpec { threads: Some(9), ..WorkSpec::default() };
    let (spans, ended) = collect(&LoadPlan { work, ..plan(closed(1, 0), 50) }, &target).await;
    let error = ended.expect_err("nine of one");
    assert!(matches!(error, ClientError::Refused { .. }) && spans.len() == 1, "{error:?}");
    assert!(error.to_string().contains("threads=\"9\""), "{error}");
}

#[tokio::test]
async fn something_else_than_a_burn_server_is_recognised() {
    let target = scripted_server(vec![http("200 OK", "<html>welcome</html>")]).await;
    let (_, ended) = collect(&plan(closed(1, 0), 5), &target).await;
    let error = ended.expect_err("not ours").to_string();
    assert!(error.contains("is it a `throttle serve`?"), "{error}");
}

#[tokio::test]
async fn a_server_that_never_answers_meets_the_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let target = Target::parse(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a target");
    let plan = LoadPlan { timeout: DurationNs::from_millis(30), ..plan(closed(1, 0), 2) };
    let (spans, ended) = collect(&plan, &target).await;
    assert_eq!(ended.expect("the run goes on").failed, 2);
    assert!(failed(&spans)[0].contains("within 30 ms"), "{spans:?}");
}

#[tokio::test]
async fn the_callback_can_end_the_run() {
    let target = burn_server(1).await;
    let mut seen = 0;
    let ended = drive(&plan(closed(1, 0), 1_000_000), &target, |_| {
        seen += 1;
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await;
    assert_eq!((ended.expect("an end is no error").requests, seen), (3, 3));
}
