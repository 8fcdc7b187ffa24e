"use strict";
// Figures as the report writes them, and small helpers.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Nanoseconds as milliseconds with one decimal; `-` where there is none. */
function msOfNs(ns) {
  return ns === null || ns === undefined ? "-" : (ns / 1e6).toFixed(1);
}

/** Microseconds as milliseconds with one decimal. */
function msOfUs(us) {
  return (us / 1e3).toFixed(1);
}

function percent(part, whole) {
  return whole > 0 ? `${((part / whole) * 100).toFixed(0)} %` : "-";
}

/** A figure that only events tell: `?` where there are none. */
function seen(row, value, words) {
  if (value !== null && value !== undefined) return words(value);
  return row.observed || row.n === 0 ? "-" : "?";
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "style") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A colour of the page. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Colours of the kinds of time, in the order of `DATA.kinds`; idle is drawn as nothing. */
const KIND_COLOURS = ["oncpu", "own", "ancestor", "waiting", "asleep", "unknown", null, "other"];
const ON_CPU = 0, OWN = 1, ANCESTOR = 2, UNKNOWN = 5, IDLE = 6, FIRST_THREAD = 8;

function kindColours() {
  return KIND_COLOURS.map((name) => (name === null ? null : colour(name)));
}

/** Fills a definition list with a verdict. */
function showVerdict(list, verdict) {
  list.replaceChildren();
  if (!verdict) return;
  list.append(element("dt", { className: "on" }, verdict.heading));
  for (const [name, words] of verdict.lines) list.append(element("dt", {}, name), element("dd", {}, words));
}

/** Fills a table: `columns` have a head and a cell of a row. */
function showTable(table, columns, rows) {
  const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column.head)));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...rows.map((row) =>
    element("tr", { "data-row": row.limit ?? "" }, ...columns.map((column) =>
      element("td", { "data-field": column.field ?? "" }, column.cell(row))))));
}
