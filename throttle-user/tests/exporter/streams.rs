//! Periods as they end.

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

use crate::made::{ID, exporter, get, period, serve, tell};

fn parsed(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn indices(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["index"].as_u64().expect("a number")).collect()
}

#[tokio::test]
async fn those_that_are_kept_come_at_once_and_the_answer_ends_if_asked_to() {
    let exporter = exporter();
    tell(&exporter, (0..600).map(|index| period(index, false)));
    let address = serve(&exporter).await;
    let (status, head, body) = get(&address, "/api/v1/periods?follow=false", "").await;
    assert!(status == 200 && head.contains("application/x-ndjson"), "{head}");
    let lines = parsed(&body);
    assert_eq!(indices(&lines), (0..600).collect::<Vec<_>>());
    assert_eq!((&lines[0]["level"], &lines[0]["container_id"]), (&"container".into(), &ID.into()));
    assert_eq!((&lines[0]["drawn_ns"], &lines[0]["throttled_at_end"]), (&20_000_000.into(), &true.into()));
    let (_, _, body) = get(&address, "/api/v1/periods?follow=false&pod=nobody", "").await;
    assert_eq!(body, "");
}

#[tokio::test]
async fn a_follower_gets_each_period_once_from_the_first_kept_to_the_last() {
    let exporter = exporter();
    tell(&exporter, [period(0, true)]);
    let address = serve(&exporter).await;
    let mut stream = TcpStream::connect(&address).await.expect("connects");
    stream.write_all(b"GET /api/v1/periods HTTP/1.0\r\n\r\n").await.expect("written");
    let mut lines = BufReader::new(stream).lines();
    while !lines.next_line().await.expect("read").expect("a head").is_empty() {}
    let mut seen = vec![];
    for next in 1..4 {
        let line = lines.next_line().await.expect("read").expect("a line");
        seen.extend(parsed(&line));
        tell(&exporter, [period(next, true)]);
    }
    assert_eq!(indices(&seen), [0, 1, 2]);
}

#[tokio::test]
async fn a_slow_follower_is_told_how_many_it_missed() {
    let exporter = exporter();
    let address = serve(&exporter).await;
    let mut stream = TcpStream::connect(&address).await.expect("connects");
    stream.write_all(b"GET /api/v1/periods?recent=false HTTP/1.0\r\n\r\n").await.expect("written");
    let mut lines = BufReader::new(stream).lines();
    while !lines.next_line().await.expect("read").expect("a head").is_empty() {}
    // All at once: no answer is written in between on this thread.
    tell(&exporter, (0..10_000).map(|index| period(index, false)));
    let (mut skipped, mut seen) = (0, 0);
    while skipped + seen < 10_000 {
        let line: Value = serde_json::from_str(&lines.next_line().await.expect("read").expect("a line")).expect("JSON");
        match line["skipped"].as_u64() {
            Some(more) => skipped += more,
            None => seen += 1,
        }
    }
    assert!(skipped > 0 && seen > 0 && skipped + seen == 10_000, "{skipped} {seen}");
}
