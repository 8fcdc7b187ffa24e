"use strict";
// The table of a limit's requests.

const SHOWN = 100;

const REQUEST_COLUMNS = [
  { head: "#", field: "request", value: (request) => request.request },
  { head: "at ms", field: "from", value: (request) => request.from_us, words: (us) => msOfUs(us) },
  { head: "wall ms", field: "wall", value: (request) => request.wall_ns, words: msOfNs },
  { head: "throttled ms", field: "throttled", value: (request) => request.throttled_ns, words: msOfNs, observed: true },
  { head: "throttled share", field: "share", value: (request) => request.throttled_ns / Math.max(1, request.wall_ns), words: (share) => `${(share * 100).toFixed(1)} %`, observed: true },
  { head: "CPU ms", field: "cpu", value: (request) => request.cpu_time_ns, words: msOfNs },
  { head: "wait ms", field: "wait", value: (request) => request.shares_ns[3], words: msOfNs, observed: true },
  { head: "periods held", field: "periods", value: (request) => request.throttled_periods, words: (held, request) => (request.periods === null ? "-" : `${held}/${request.periods}`), observed: true },
  { head: "phase ms", field: "phase", value: (request) => request.phase_ns ?? -1, words: (ns) => (ns < 0 ? "-" : msOfNs(ns)) },
];

class RequestTable {
  constructor(chosen) {
    this.table = document.getElementById("requests");
    this.more = document.getElementById("more");
    this.chosen = chosen;
    this.column = REQUEST_COLUMNS[0];
    this.descending = false;
    this.limit = null;
    this.heads = REQUEST_COLUMNS.map((column) => {
      const button = element("button", { type: "button" }, column.head);
      button.addEventListener("click", () => this.sortBy(column));
      return element("th", { scope: "col", "data-field": column.field }, button);
    });
    this.table.tHead.replaceChildren(element("tr", {}, ...this.heads, element("th", { scope: "col" }, "where it went")));
    this.more.addEventListener("click", () => this.show(this.shown + SHOWN * 5));
  }

  select(limit) {
    this.limit = limit;
    this.selected = null;
    this.order();
  }

  sortBy(column) {
    // What one looks for is the largest.
    this.descending = column === this.column ? !this.descending : column !== REQUEST_COLUMNS[0];
    this.column = column;
    this.order();
  }

  order() {
    const { value } = this.column;
    const sign = this.descending ? -1 : 1;
    this.rows = [...this.limit.requests].sort((a, b) => sign * (value(a) - value(b)) || a.request - b.request);
    REQUEST_COLUMNS.forEach((column, i) => {
      if (column === this.column) this.heads[i].setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else this.heads[i].removeAttribute("aria-sort");
    });
    this.show(SHOWN);
  }

  show(count) {
    this.shown = Math.min(count, this.rows.length);
    this.table.tBodies[0].replaceChildren(...this.rows.slice(0, this.shown).map((request) => this.row(request)));
    this.more.hidden = this.shown >= this.rows.length;
    this.more.textContent = `Show more (${this.shown} of ${this.rows.length})`;
  }

  row(request) {
    const cells = REQUEST_COLUMNS.map((column, i) => {
      const value = column.value(request);
      let words = column.words ? column.words(value, request) : String(value);
      if (column.observed && !this.limit.seen) words = "?";
      if (i > 0) return element("td", { "data-field": column.field }, words);
      const button = element("button", { type: "button", title: "Show it in the timeline" }, request.complete ? words : `${words} !`);
      button.addEventListener("click", () => this.chosen(request));
      return element("td", { "data-field": column.field }, button);
    });
    const bar = element("div", { className: "bar", role: "img", "aria-label": barWords(request) });
    request.shares_ns.forEach((share, kind) => {
      if (share > 0) bar.append(element("i", { style: `flex:${share} 0 0;background:var(--${KIND_COLOURS[kind]})` }));
    });
    return element("tr", { "data-request": request.request, "aria-selected": String(request === this.selected) }, ...cells, element("td", {}, bar));
  }

  mark(request) {
    this.selected = request;
    for (const row of this.table.tBodies[0].rows) row.setAttribute("aria-selected", String(row.dataset.request === String(request.request)));
  }
}

function barWords(request) {
  return request.shares_ns.map((share, kind) => [share, kind]).filter(([share]) => share > 0)
    .map(([share, kind]) => `${DATA.kinds[kind]} ${msOfNs(share)} ms`).join(", ");
}
