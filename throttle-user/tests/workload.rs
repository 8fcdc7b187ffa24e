//! The burn server over loopback, in process: what it burns, what it answers, what it refuses.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::OnceLock;

use serde_json::Value;
use throttle_user::request::{FanOut, ServerSpan};
use throttle_user::time::DurationNs;
use throttle_user::workload::{BurnDefaults, Burner, Server, ServerError, ServerOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server and the means to stop it.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), ServerError>>,
}

fn options(workers: u32) -> ServerOptions {
    let defaults = BurnDefaults { work_ns: DurationNs::from_millis(5), threads: 1, fan_out: FanOut::Split };
    ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), workers, defaults }
}

async fn start(workers: u32) -> Running {
    static BURNER: OnceLock<Burner> = OnceLock::new();
    let server = Server::bind(&options(workers), *BURNER.get_or_init(Burner::calibrate)).await.expect("binds");
    let (stop, stopped) = oneshot::channel::<()>();
    let address = server.address();
    let served = tokio::spawn(server.serve(async { drop(stopped.await) }));
    Running { address, stop, served }
}

/// Status and body of a `GET` on a connection of its own.
async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

async fn burn(address: SocketAddr, query: &str) -> ServerSpan {
    let (status, body) = get(address, &format!("/burn{query}")).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).expect("a server span")
}

/// CPU time taken over CPU time asked. The burner stops at most half a microsecond short; the room above is for what the
/// host of a virtual machine takes meanwhile and the guest charges to the thread.
fn ratio(took: DurationNs, asked_ms: f64) -> f64 {
    took.as_millis_f64() / asked_ms
}

#[tokio::test]
async fn a_request_burns_the_cpu_time_it_asked_for_on_one_worker() {
    let server = start(1).await;
    let span = burn(server.address, "?work_ms=20.5").await;
    assert_eq!(span.work_ns, DurationNs(20_500_000));
    assert_eq!(span.workers.len(), 1);
    assert!((0.99..=1.1).contains(&ratio(span.cpu_time(), 20.5)), "{span:?}");
    assert!(span.accepted_ns <= span.started_ns, "{span:?}");
    assert!(span.wall() >= span.cpu_time(), "{span:?}");
}

#[tokio::test]
async fn a_request_that_says_nothing_gets_the_defaults() {
    let server = start(1).await;
    assert_eq!(burn(server.address, "").await.work_ns, DurationNs::from_millis(5));
}

#[tokio::test]
async fn split_shares_the_work_out_and_whole_gives_it_to_each() {
    let server = start(3).await;
    for (mode, each_ms) in [("split", 6.0), ("whole", 18.0)] {
        let span = burn(server.address, &format!("?work_ms=18&threads=3&mode={mode}")).await;
        assert_eq!(span.work_ns.as_millis_f64(), 3.0 * each_ms);
        assert_eq!(span.workers.iter().map(|worker| worker.tid).collect::<BTreeSet<_>>().len(), 3, "{span:?}");
        for worker in &span.workers {
            assert!((0.99..=1.25).contains(&ratio(worker.cpu_time_ns, each_ms)), "{mode}: {span:?}");
        }
    }
}

#[tokio::test]
async fn workers_are_threads_of_their_own_and_named() {
    let server = start(2).await;
    let span = burn(server.address, "?threads=2").await;
    let mut names: Vec<String> = span
        .workers
        .iter()
        .map(|worker| std::fs::read_to_string(format!("/proc/self/task/{}/comm", worker.tid)).expect("its name"))
        .collect();
    names.sort();
    assert_eq!(names, ["burn-0\n", "burn-1\n"]);
}

#[tokio::test]
async fn requests_beyond_the_workers_queue_and_their_wait_stands_before_the_start() {
    let server = start(1).await;
    let (a, b) = tokio::join!(burn(server.address, "?work_ms=20"), burn(server.address, "?work_ms=20"));
    let (first, second) = if a.started_ns < b.started_ns { (a, b) } else { (b, a) };
    assert!(first.finished_ns <= second.started_ns, "{first:?} {second:?}");
    let queued = second.started_ns.since(second.accepted_ns);
    assert!(queued.0 > first.cpu_time().0 / 2, "queued for {queued:?} behind {first:?}");
}

#[tokio::test]
async fn bad_parameters_are_refused_with_their_name_and_range() {
    let server = start(2).await;
    for (query, parameter, text) in [
        ("?work_ms=-1", "work_ms", "0.001 to 600000"),
        ("?work_ms=sixty", "work_ms", "sixty"),
        ("?threads=3", "threads", "from 1 to 2"),
        ("?threads=0", "threads", "from 1 to 2"),
        ("?mode=both", "mode", "split"),
        ("?wrok_ms=60", "wrok_ms", "work_ms, threads, mode"),
        ("?work_ms=1&work_ms=2", "work_ms", "once"),
    ] {
        let (status, body) = get(server.address, &format!("/burn{query}")).await;
        let json: Value = serde_json::from_str(&body).expect("json");
        assert_eq!((status, json["parameter"].as_str()), (400, Some(parameter)), "{query}: {body}");
        assert!(json["error"].as_str().is_some_and(|error| error.contains(text)), "{query}: {body}");
    }
}

#[tokio::test]
async fn health_info_and_unknown_paths_answer_without_burning() {
    let server = start(2).await;
    assert_eq!(get(server.address, "/healthz").await, (200, "ok\n".to_owned()));
    let info: Value = serde_json::from_str(&get(server.address, "/info").await.1).expect("json");
    assert_eq!(info["pid"], std::process::id());
    assert_eq!(info["workers"], 2);
    assert_eq!(info["defaults"]["work_ns"], 5_000_000);
    assert!(info["calibration"]["iterations_per_us"].as_f64().is_some_and(|rate| rate > 0.0), "{info}");
    let (status, body) = get(server.address, "/brun").await;
    assert!(status == 404 && body.contains("/burn"), "{status} {body}");
}

#[tokio::test]
async fn shutdown_answers_what_was_accepted_first() {
    let server = start(1).await;
    let address = server.address;
    let running = tokio::spawn(async move { burn(address, "?work_ms=50").await });
    let worker_is_busy = || {
        let cpu = throttle_user::time::process_cpu();
        async move {
            while (throttle_user::time::process_cpu() - cpu).0 < 5_000_000 {
                tokio::task::yield_now().await;
            }
        }
    };
    worker_is_busy().await;
    server.stop.send(()).expect("the server still runs");
    server.served.await.expect("no panic").expect("a clean end");
    assert!((0.99..=1.1).contains(&ratio(running.await.expect("answered").cpu_time(), 50.0)));
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_client_that_has_sent_half_a_head() {
    let server = start(1).await;
    let mut slow = TcpStream::connect(server.address).await.expect("connects");
    slow.write_all(b"GET /burn HTTP/1.1\r\nHost: a\r\nX-Half:").await.expect("sends");
    // The server has the connection once it answers one that came after it.
    assert_eq!(get(server.address, "/healthz").await.0, 200);
    server.stop.send(()).expect("the server still runs");
    server.served.await.expect("no panic").expect("a clean end");
    // Still open on this side: it was not the client that gave up.
    slow.writable().await.expect("open");
}

#[tokio::test]
async fn a_body_and_an_endless_head_are_refused_and_the_server_goes_on() {
    let server = start(1).await;
    let answer = |request: Vec<u8>| async move {
        let mut stream = TcpStream::connect(server.address).await.expect("connects");
        // The server may close before it has read everything.
        let _ = stream.write_all(&request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let body = answer(b"GET /burn HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_vec()).await;
    assert!(body.starts_with("HTTP/1.1 413 ") && body.contains("no body"), "{body}");
    let endless = [b"GET /burn HTTP/1.1\r\nHost: a\r\nX-Long: ".to_vec(), vec![b'x'; 1 << 20]].concat();
    let head = answer(endless).await;
    assert!(head.is_empty() || head.starts_with("HTTP/1.1 431 "), "{head}");
    assert_eq!(get(server.address, "/healthz").await.0, 200);
}

#[tokio::test]
async fn a_taken_address_and_impossible_defaults_are_refused_by_name() {
    let server = start(1).await;
    let taken = ServerOptions { listen: server.address, ..options(1) };
    let error = Server::bind(&taken, Burner::calibrate()).await.expect_err("taken").to_string();
    assert!(error.contains(&server.address.to_string()) && error.contains("port 0"), "{error}");
    let mut wide = options(1);
    wide.defaults.threads = 2;
    let error = Server::bind(&wide, Burner::calibrate()).await.expect_err("too wide").to_string();
    assert!(error.contains("--workers"), "{error}");
}
