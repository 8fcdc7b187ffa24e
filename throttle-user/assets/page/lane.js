"use strict";
// A lane: stretches of one kind after the other, and what of them is to be seen in a window.

/** First place in `sorted` whose value is above `value`. */
function above(sorted, value, from = 0, to = sorted.length) {
  let low = from, high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

class Lane {
  /** `edges`: n + 1 instants in us; `kinds`: n kinds. */
  constructor(name, edges, kinds, merged = 0) {
    this.name = name;
    this.edges = edges;
    this.kinds = kinds;
    this.merged = merged;
    this.sums = null;
  }

  /** From a flat list of length and kind. */
  static ofCourse({ name, from_us, course, merged_us }) {
    const n = course.length / 2;
    const edges = new Float64Array(n + 1);
    const kinds = new Uint16Array(n);
    edges[0] = from_us;
    for (let i = 0; i < n; i++) {
      edges[i + 1] = edges[i] + course[2 * i];
      kinds[i] = course[2 * i + 1];
    }
    return new Lane(name, edges, kinds, merged_us);
  }

  /** From stretches [from, to, kind] in order; between them is nothing. */
  static ofSpans(name, spans, start, end) {
    const edges = [start], kinds = [];
    for (const [from, to, kind] of spans) {
      const begin = Math.max(from, edges[edges.length - 1]);
      if (begin > edges[edges.length - 1]) { edges.push(begin); kinds.push(IDLE); }
      if (to > begin) { edges.push(to); kinds.push(kind); }
    }
    if (end > edges[edges.length - 1]) { edges.push(end); kinds.push(IDLE); }
    return new Lane(name, Float64Array.from(edges), Uint16Array.from(kinds));
  }

  /** The stretch at an instant: {from, to, kind}, or null outside. */
  at(us) {
    const place = above(this.edges, us) - 1;
    if (place < 0 || place >= this.kinds.length) return null;
    return { from: this.edges[place], to: this.edges[place + 1], kind: this.kinds[place] };
  }

  static drawn(kind) {
    return kind >= FIRST_THREAD ? ON_CPU : kind;
  }

  /** Time of each drawn kind before each edge, made once. */
  cumulative() {
    if (this.sums) return this.sums;
    const n = this.kinds.length;
    this.sums = Array.from({ length: FIRST_THREAD }, () => new Float64Array(n + 1));
    for (let i = 0; i < n; i++) {
      for (let kind = 0; kind < FIRST_THREAD; kind++) this.sums[kind][i + 1] = this.sums[kind][i];
      this.sums[Lane.drawn(this.kinds[i])][i + 1] += this.edges[i + 1] - this.edges[i];
    }
    return this.sums;
  }

  /** Time of a drawn kind before an instant that lies in stretch `place`. */
  before(kind, us, place) {
    const part = Lane.drawn(this.kinds[place]) === kind ? us - this.edges[place] : 0;
    return this.sums[kind][place] + part;
  }

  /** What is to be seen of a window on so many columns: for each kind pairs of column and width. */
  visible(from, to, columns) {
    const found = Array.from({ length: FIRST_THREAD }, () => []);
    const n = this.kinds.length;
    if (n === 0 || to <= from) return found;
    const start = Math.max(from, this.edges[0]), end = Math.min(to, this.edges[n]);
    if (end <= start) return found;
    const scale = columns / (to - from);
    const first = Math.max(0, above(this.edges, start) - 1);
    const last = Math.min(n - 1, above(this.edges, end) - 1);
    if (last - first < columns) {
      for (let i = first; i <= last; i++) {
        const begin = Math.max(start, this.edges[i]), finish = Math.min(end, this.edges[i + 1]);
        if (finish > begin) found[Lane.drawn(this.kinds[i])].push((begin - from) * scale, (finish - begin) * scale);
      }
      return found;
    }
    this.cumulative();
    let run = -1, runFrom = 0;
    const close = (column) => { if (run >= 0) found[run].push(runFrom, column - runFrom); };
    let place = first;
    for (let column = Math.floor((start - from) * scale); column < columns; column++) {
      const begin = Math.max(start, from + column / scale), finish = Math.min(end, from + (column + 1) / scale);
      if (finish <= begin) continue;
      while (this.edges[place + 1] <= begin && place < last) place++;
      const until = Math.min(last, above(this.edges, finish, place, last + 1) - 1);
      let most = -1, longest = 0;
      for (let kind = 0; kind < FIRST_THREAD; kind++) {
        const time = this.before(kind, finish, until) - this.before(kind, begin, place);
        if (time > longest) { longest = time; most = kind; }
      }
      if (most !== run) { close(column); run = most; runFrom = column; }
    }
    close(Math.min(columns, (end - from) * scale));
    return found;
  }
}

/** The periods of a level, as a lane of bars. */
class PeriodLane {
  constructor(name, periods) {
    this.name = name;
    this.periods = periods;
    this.count = periods.from_us.length;
    this.sums = null;
  }

  /** Place of the period at an instant, or -1. */
  place(us) {
    const place = above(this.periods.from_us, us) - 1;
    return place >= 0 && us < this.periods.to_us[place] ? place : -1;
  }

  fill(place) {
    const quota = this.periods.quota_us[place];
    return quota > 0 ? Math.min(1, Math.max(0, this.periods.used_us[place]) / quota) : 0;
  }

  isOut(place) {
    return this.periods.levels[place] !== 0;
  }

  /** Bars of a window: column, width, fill, out; several periods in a column are one bar, of their mean. */
  visible(from, to, columns) {
    const scale = columns / (to - from);
    const first = Math.max(0, above(this.periods.to_us, from));
    const last = above(this.periods.from_us, to) - 1;
    const bars = [];
    if (last - first < columns / 2) {
      for (let i = first; i <= last; i++) {
        const begin = Math.max(from, this.periods.from_us[i]), finish = Math.min(to, this.periods.to_us[i]);
        if (finish > begin) bars.push([(begin - from) * scale, (finish - begin) * scale, this.fill(i), this.isOut(i)]);
      }
      return bars;
    }
    this.cumulative();
    let place = first;
    for (let column = 0; column < columns && place <= last; column++) {
      const finish = from + (column + 1) / scale;
      const next = Math.min(last + 1, above(this.periods.from_us, finish, place, last + 1));
      if (next <= place) continue;
      const count = next - place;
      const fill = (this.sums.fill[next] - this.sums.fill[place]) / count;
      bars.push([column, 1, fill, (this.sums.out[next] - this.sums.out[place]) * 2 >= count]);
      place = next;
    }
    return bars;
  }

  cumulative() {
    if (this.sums) return;
    const fill = new Float64Array(this.count + 1), out = new Float64Array(this.count + 1);
    for (let i = 0; i < this.count; i++) {
      fill[i + 1] = fill[i] + this.fill(i);
      out[i + 1] = out[i] + (this.isOut(i) ? 1 : 0);
    }
    this.sums = { fill, out };
  }
}
