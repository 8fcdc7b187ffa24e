//! Metrics, health and rows.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use throttle_user::event::{HookReport, HookState};

use crate::made::{ID, UID, exporter, full, get, period, serve, tell};

/// Value of the container's sample of a family.
fn sample(text: &str, family: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(&format!("{family}{{")) && line.contains(ID))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn three_throttled_times_and_all_else_are_told_in_both_formats() {
    let address = serve(&full()).await;
    for accept in ["text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"] {
        let (status, head, text) = get(&address, "/metrics", accept).await;
        assert_eq!(status, 200, "{text}");
        let open = accept.starts_with("application");
        assert_eq!(head.contains("application/openmetrics-text"), open, "{head}");
        assert_eq!(text.ends_with("# EOF\n"), open, "{text}");
        for (family, value) in [
            ("throttle_periods_total", 3.0),
            ("throttle_throttled_periods_total", 3.0),
            ("throttle_incomplete_periods_total", 0.0),
            ("throttle_throttled_cpu_seconds_total", 0.24),
            ("throttle_throttled_wall_seconds_total", 0.24),
            ("throttle_fully_throttled_seconds_total", 0.24),
            ("throttle_cpu_drawn_seconds_total", 0.06),
            ("throttle_cpu_used_seconds_total", 0.06),
            ("throttle_denied_idle_cpu_seconds_total", 0.21),
            ("throttle_throttle_duration_seconds_count", 3.0),
            ("throttle_exhaustion_seconds_sum", 0.06),
            ("throttle_quota_seconds", 0.02),
            ("throttle_period_seconds", 0.1),
        ] {
            assert_eq!(sample(&text, family), Some(value), "{family}\n{text}");
        }
        for own in [
            "throttle_records_lost_total{kind=\"period\"} 2",
            "throttle_cgroups{state=\"limited\"} 2",
            "throttle_hook_missing{tracepoint=\"cgroup_attach_task\"} 1",
            "throttle_hook_missing{tracepoint=\"sched_switch\"} 0",
            "process_resident_memory_bytes 9437184",
        ] {
            assert!(text.contains(own), "{own}\n{text}");
        }
        let bucket = |bound: &str| {
            text.lines()
                .find(|line| line.contains("throttle_duration_seconds_bucket") && line.contains(bound))
                .and_then(|line| line.rsplit(' ').next())
        };
        assert_eq!(
            (bucket("le=\"0.06\""), bucket("le=\"0.08\""), bucket("le=\"+Inf\"")),
            (Some("0"), Some("3"), Some("3")),
            "{text}"
        );
    }
}

#[tokio::test]
async fn what_was_not_measured_has_no_series_and_no_field() {
    let exporter = exporter();
    let address = serve(&exporter).await;
    let (_, _, text) = get(&address, "/metrics", "").await;
    // No period ended: not even zeros.
    assert!(!text.contains("throttle_periods_total{") && text.contains("throttle_quota_seconds{"), "{text}");
    tell(&exporter, [period(0, false)]);
    let (_, _, text) = get(&address, "/metrics", "").await;
    assert_eq!(sample(&text, "throttle_throttled_wall_seconds_total"), Some(0.08), "{text}");
    for absent in ["fully_throttled", "cpu_used", "denied_idle", "peak_parallelism", "process_cpu", "records_lost"] {
        assert!(!text.contains(absent), "{absent}\n{text}");
    }
    let (_, _, body) = get(&address, "/api/v1/cgroups", "").await;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let totals = &body["cgroups"][1]["totals"];
    assert_eq!((&totals["throttled_wall_ns"], totals.get("used_ns")), (&json!(80_000_000), None), "{body:#}");
    assert_eq!(body["cgroups"][0].get("totals"), None, "{body:#}");
}

#[tokio::test]
async fn names_of_the_api_label_every_series_and_select_rows() {
    let exporter = full();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "cart", "uid": UID},
        "status": {"containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": format!("containerd://{ID}")
        }]}
    }))
    .expect("a pod");
    exporter.state().pods.apply(&pod);
    let address = serve(&exporter).await;
    let (_, _, text) = get(&address, "/metrics", "").await;
    let label = "namespace=\"shop\",pod=\"cart\",container=\"app\",level=\"container\",";
    assert!(text.contains(&format!("throttle_periods_total{{{label}")), "{text}");
    assert!(
        text.contains("throttle_quota_seconds{namespace=\"shop\",pod=\"cart\",container=\"\",level=\"pod\","),
        "{text}"
    );
    for (query, rows) in [("", 2), ("?pod=cart", 2), ("?namespace=shop&container=app", 1), ("?pod=other", 0)] {
        let (_, _, body) = get(&address, &format!("/api/v1/cgroups{query}"), "").await;
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["cgroups"].as_array().map(Vec::len), Some(rows), "{query}: {body:#}");
    }
}

#[tokio::test]
async fn readiness_waits_for_what_it_rests_on_and_health_for_nothing() {
    let exporter = exporter();
    let address = serve(&exporter).await;
    let (status, _, text) = get(&address, "/readyz", "").await;
    assert_eq!((status, text.as_str()), (503, "no record was read yet\n"));
    assert_eq!(get(&address, "/healthz", "").await.0, 200);
    tell(&exporter, []);
    assert_eq!(get(&address, "/readyz", "").await.0, 200);
    // What is less than it could be is no reason to be taken for broken.
    let lost = HookReport {
        tracepoint: "cgroup_attach_task",
        is_required: false,
        without: "moves are not seen",
        state: HookState::Absent,
    };
    exporter.state().own.hooks = vec![lost];
    let (status, _, text) = get(&address, "/readyz", "").await;
    assert_eq!(status, 200);
    assert!(text.contains("cgroup_attach_task absent from this kernel; without it moves are not seen;"), "{text}");
    // Nothing moved for a minute.
    let minute_ago = |at: throttle_user::time::MonoNs| throttle_user::time::MonoNs(at.0.saturating_sub(60_000_000_000));
    {
        let mut state = exporter.state();
        state.analysed = state.analysed.map(minute_ago);
    }
    for path in ["/healthz", "/readyz"] {
        let (status, _, text) = get(&address, path, "").await;
        assert!(status == 503 && text.starts_with("the timeline has not moved"), "{path}: {status} {text}");
    }
}
