"use strict";
// The page: what is selected, and what follows from it.

const SUMMARY_COLUMNS = [
  { head: "limit", field: "limit", cell: (row) => row.limit },
  { head: "n", field: "n", cell: (row) => `${row.n}${row.n === row.planned ? "" : `/${row.planned}`}${row.failed > 0 ? ` (${row.failed} failed)` : ""}` },
  { head: "p50 ms", field: "p50_ns", cell: (row) => msOfNs(row.p50_ns) },
  { head: "p99 ms", field: "p99_ns", cell: (row) => msOfNs(row.p99_ns) },
  { head: "max ms", field: "max_ns", cell: (row) => msOfNs(row.max_ns) },
  { head: "model p50 ms", field: "model", cell: (row) => (row.model ? `${msOfNs(row.model.p50_ns)} (${row.model.inside}/${row.n})` : "-") },
  { head: "throttled ms", field: "throttled_wall_ns", cell: (row) => seen(row, row.throttled_wall_ns, msOfNs) },
  { head: "own level", field: "throttled_own_ns", cell: (row) => seen(row, row.throttled_own_ns, msOfNs) },
  { head: "ancestor only", field: "throttled_ancestor_ns", cell: (row) => seen(row, row.throttled_ancestor_ns, msOfNs) },
  { head: "kernel's container", field: "kernel_container_only_ns", cell: (row) => (row.kernel_container_only_ns === null ? "not read" : msOfNs(row.kernel_container_only_ns)) },
  { head: "throttled / periods", field: "throttled_periods", cell: (row) => seen(row, row.throttled_periods, (held) => `${held}/${row.counted_periods} ${percent(held, row.counted_periods)}`) },
  { head: "node idle", field: "node_idle_share", cell: (row) => seen(row, row.node_idle_share, (share) => `${(share * 100).toFixed(0)}%`) },
  { head: "kernel", field: "agreement", cell: (row) => ({ agrees: "agrees", differs: "differs", not_compared: "not compared" })[row.agreement.verdict] },
];

const CLOSED_COLUMNS = [
  { head: "limit", field: "limit", cell: (row) => row.limit },
  { head: "best ms", field: "best_ns", cell: (row) => msOfNs(row.best_ns) },
  { head: "median ms", field: "p50_ns", cell: (row) => msOfNs(row.p50_ns) },
  { head: "worst ms", field: "worst_ns", cell: (row) => msOfNs(row.worst_ns) },
];

class Page {
  constructor() {
    document.title = document.getElementById("title").textContent = DATA.title;
    document.getElementById("machine").textContent = DATA.machine;
    document.getElementById("plan").textContent = DATA.plan;
    showVerdict(document.getElementById("verdict"), DATA.verdict);
    showTable(document.getElementById("summary"), SUMMARY_COLUMNS, DATA.summary.limits);
    const limits = new Set(DATA.summary.limits.map((row) => row.limit));
    const closed = DATA.curve.map((point) => ({ limit: `${point.millicores}m`, ...point })).filter((row) => limits.has(row.limit));
    showTable(document.getElementById("closed"), CLOSED_COLUMNS, closed);
    document.getElementById("closed-note").textContent = closed.length > 0
      ? "One thread under one quota, over all phases alike, for the mean CPU time of the run's requests; without a second level, slices and the tick, which the model has."
      : "Does not apply: it covers one thread under one quota without burst, with requests a period or more apart.";
    this.figures = new Figures();
    this.requests = new RequestTable((request) => this.choose(request));
    this.timeline = null;
    this.tabs();
    this.legend();
    this.keys();
    this.colours();
    window.addEventListener("resize", () => {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => { this.figures.resize(); this.timeline?.resize(); });
    });
    this.select(DATA.limits.find((limit) => limit.requests.some((request) => request.throttled_ns > 0)) ?? DATA.limits[0]);
  }

  tabs() {
    const tabs = document.getElementById("tabs");
    for (const limit of DATA.limits) {
      const tab = element("button", { type: "button", "data-limit": limit.limit }, limit.limit);
      tab.addEventListener("click", () => this.select(limit));
      tabs.append(tab);
    }
    if (DATA.limits.length === 0) tabs.append("No limit was measured.");
  }

  select(limit) {
    if (!limit) return;
    this.limit = limit;
    for (const tab of document.querySelectorAll("#tabs button")) tab.setAttribute("aria-pressed", String(tab.dataset.limit === limit.limit));
    document.getElementById("h-limit").textContent = `Limit ${limit.limit}`;
    document.getElementById("notices").replaceChildren(...limit.notices.map((words) => element("p", { className: "notice" }, words)));
    showVerdict(document.getElementById("limit-verdict"), limit.verdict);
    showVerdict(document.getElementById("request-verdict"), null);
    document.getElementById("details").replaceChildren(element("p", { className: "quiet" }, "Point at the timeline, or use the keys."));
    document.getElementById("failed").replaceChildren(...limit.failed.map(([number, error]) => element("li", {}, `request ${number} failed: ${error}`)));
    this.timeline?.dispose();
    this.timeline = new Timeline(document.getElementById("timeline"), limit, (us, lane) => this.tell(us, lane));
    this.requests.select(limit);
    this.figures.select(limit);
  }

  choose(request) {
    this.requests.mark(request);
    showVerdict(document.getElementById("request-verdict"), request.verdict);
    this.timeline.showRequest(request);
    document.getElementById("timeline").focus({ preventScroll: false });
  }

  /** What was at an instant: in the lane, in the container's period, in the request. */
  tell(us, { lane, kind }) {
    const lines = [`${msOfUs(us)} ms`];
    if (kind !== "periods") {
      const stretch = lane.at(us);
      if (stretch) lines[0] += `, ${lane.name}: ${this.kindWords(stretch.kind, kind)} from ${msOfUs(stretch.from)} to ${msOfUs(stretch.to)} (${msOfUs(stretch.to - stretch.from)} ms)${lane.merged > 0 ? `; stretches under ${msOfUs(lane.merged)} ms are merged` : ""}`;
    }
    lines.push(this.periodWords(us));
    const request = this.limit.requests.find((request) => us >= request.from_us && us < request.from_us + request.wall_ns / 1e3);
    lines.push(request ? `request ${request.request}: ${msOfNs(request.wall_ns)} ms; ${barWords(request)}` : "no request");
    document.getElementById("details").replaceChildren(...lines.map((line) => element("p", {}, line)));
  }

  kindWords(kind, lane) {
    if (kind >= FIRST_THREAD) return this.limit.threads[kind - FIRST_THREAD]?.name ?? "a thread";
    if (lane === "level") return kind === IDLE ? "has quota" : "out of quota";
    if (lane === "requests" && kind === IDLE) return "no request";
    return DATA.kinds[kind];
  }

  periodWords(us) {
    const leaf = this.limit.levels[0];
    if (this.limit.quota_ns === null) return "no limit, so no periods";
    if (!leaf || leaf.periods.from_us.length === 0) return "no period is known";
    const place = new PeriodLane("", leaf.periods).place(us);
    if (place < 0) return "no period counted here: the timer rested";
    const of = (column) => leaf.periods[column][place];
    const names = [[1, "container"], [2, "pod"], [4, "a group above"]].filter(([bit]) => of("levels") & bit).map(([, name]) => name);
    const out = names.length > 0 ? `${names.join(" and ")} out, first after ${msOfUs(of("out_after_us"))} ms, for ${msOfUs(of("out_us"))} ms` : "no quota out";
    const measured = (column) => (of(column) < 0 ? "not measured" : `${msOfUs(of(column))} ms`);
    const late = of("periods") > 1 ? `; ${of("periods")} periods, for its timer came late` : "";
    return `period ${of("index")}: used ${measured("used_us")} of ${msOfUs(of("quota_us"))} ms; ${out}; threads held for ${measured("held_us")}; idle CPU denied: ${measured("denied_us")}${late}${of("complete") ? "" : "; not whole"}`;
  }

  legend() {
    const items = DATA.kinds.map((name, kind) => [name, KIND_COLOURS[kind]]).filter(([, colour]) => colour);
    document.getElementById("legend").replaceChildren(...items.map(([name, colour]) => element("li", {}, element("i", { style: `background:var(--${colour})` }), name)));
  }

  keys() {
    document.querySelectorAll("[data-do]").forEach((button) => button.addEventListener("click", () => this.timeline?.do(button.dataset.do)));
    document.getElementById("timeline").addEventListener("keydown", (event) => {
      const action = KEYS[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.timeline?.do(action);
    });
  }

  /** Light and dark: the system's, or the one that was chosen. */
  colours() {
    const choices = ["system", "light", "dark"];
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const button = document.getElementById("theme");
    let choice = 0;
    const apply = () => {
      const theme = choices[choice] === "system" ? (system.matches ? "dark" : "light") : choices[choice];
      document.documentElement.dataset.theme = theme;
      button.textContent = `Colours: ${choices[choice]}`;
      button.setAttribute("aria-label", `Colours: ${choices[choice]}`);
      this.figures.draw();
      this.timeline?.draw();
    };
    button.addEventListener("click", () => { choice = (choice + 1) % choices.length; apply(); });
    system.addEventListener("change", apply);
    apply();
  }
}

const page = new Page();
