"use strict";
// The timeline of a limit: lanes over one axis of time, with zoom, pan, hover and keys.

const ROW = 26, TOP = 8, BOTTOM = 74, RIGHT = 14;

/** Many rectangles of one colour as one shape: [x, width, x, width, ...] of one height. */
echarts.graphic.registerShape("strips", echarts.graphic.extendShape({
  shape: { pairs: [], y: 0, height: 0 },
  buildPath(path, shape) {
    for (let i = 0; i < shape.pairs.length; i += 2) {
      path.rect(shape.pairs[i], shape.y, Math.max(shape.pairs[i + 1], 0.6), shape.height);
    }
  },
}));

/** Bars that stand on one line: [x, width, height, ...]. */
echarts.graphic.registerShape("columns", echarts.graphic.extendShape({
  shape: { bars: [], bottom: 0 },
  buildPath(path, shape) {
    for (let i = 0; i < shape.bars.length; i += 3) {
      const height = shape.bars[i + 2];
      path.rect(shape.bars[i], shape.bottom - height, Math.max(shape.bars[i + 1], 0.6), height);
    }
  },
}));

/** Upright lines. */
echarts.graphic.registerShape("borders", echarts.graphic.extendShape({
  shape: { xs: [], top: 0, bottom: 0 },
  buildPath(path, shape) {
    for (const x of shape.xs) { path.moveTo(x, shape.top); path.lineTo(x, shape.bottom); }
  },
}));

/** All lanes of a limit, in the order in which they are drawn. */
function lanesOf(limit) {
  const lanes = [];
  const leaf = limit.levels[0];
  if (leaf && leaf.periods.from_us.length > 0) lanes.push({ kind: "periods", lane: new PeriodLane("quota used", leaf.periods) });
  const streams = [...new Set(limit.requests.map((request) => request.stream))].sort((a, b) => a - b);
  for (const stream of streams) {
    const spans = [];
    for (const request of limit.requests.filter((request) => request.stream === stream)) {
      let at = request.from_us;
      for (let i = 0; i < request.course.length; i += 2) {
        spans.push([at, at + request.course[i], request.course[i + 1]]);
        at += request.course[i];
      }
    }
    const name = streams.length > 1 ? `requests ${stream}` : "requests";
    lanes.push({ kind: "requests", stream, lane: Lane.ofSpans(name, spans, 0, limit.length_us) });
  }
  limit.levels.forEach((level, index) => {
    const kind = index === 0 ? OWN : ANCESTOR;
    const spans = level.out_us.map(([from, to]) => [from, to, kind]);
    lanes.push({ kind: "level", lane: Lane.ofSpans(`${level.name} out`, spans, 0, limit.length_us) });
  });
  for (const thread of limit.threads) lanes.push({ kind: "thread", lane: Lane.ofCourse(thread) });
  for (const cpu of limit.cpus) lanes.push({ kind: "cpu", lane: Lane.ofCourse(cpu) });
  return lanes;
}

class Timeline {
  /** `told(us, lane)`: the pointer or a key is at an instant of a lane. */
  constructor(holder, limit, told) {
    this.limit = limit;
    this.told = told;
    this.lanes = lanesOf(limit);
    this.length = Math.max(limit.length_us, 1);
    this.window = [0, this.length];
    this.row = 0;
    this.cursor = null;
    this.holder = holder;
    holder.style.height = `${TOP + BOTTOM + ROW * Math.max(this.lanes.length, 1)}px`;
    this.chart = echarts.init(holder, null, { renderer: "canvas" });
    this.line = new echarts.graphic.Line({ silent: true, invisible: true, z: 100 });
    this.band = new echarts.graphic.Rect({ silent: true, invisible: true, z: 1 });
    this.draw();
    this.chart.getZr().add(this.line);
    this.chart.getZr().add(this.band);
    this.chart.on("datazoom", () => { this.window = this.shown(); this.mark(); });
    this.chart.getZr().on("mousemove", (event) => this.hover(event.offsetX, event.offsetY));
    this.chart.getZr().on("click", (event) => this.hover(event.offsetX, event.offsetY));
  }

  left() {
    return this.holder.clientWidth < 560 ? 92 : 132;
  }

  draw() {
    const names = this.lanes.map(({ lane }) => lane.name);
    const text = colour("text"), quiet = colour("quiet"), line = colour("line");
    this.colours = kindColours();
    this.chart.setOption({
      animation: false,
      // Where it is said to be, whatever its labels need: the cursor is placed by that.
      grid: { left: this.left(), right: RIGHT, top: TOP, bottom: BOTTOM, outerBoundsMode: "none" },
      xAxis: {
        type: "value", min: 0, max: this.length,
        axisLabel: { color: quiet, hideOverlap: true, alignMaxLabel: "right", formatter: (us) => (us / 1e3).toLocaleString("en", { maximumFractionDigits: 1 }) },
        axisLine: { lineStyle: { color: line } }, splitLine: { show: false },
        name: "ms", nameGap: 26, nameLocation: "middle", nameTextStyle: { color: quiet },
      },
      yAxis: {
        type: "category", inverse: true, data: names, axisTick: { show: false }, axisLine: { show: false },
        axisLabel: { color: text, width: this.left() - 10, overflow: "truncate", interval: 0 },
        splitLine: { show: false },
      },
      dataZoom: [
        { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: "shift", startValue: this.window[0], endValue: this.window[1], minValueSpan: 50 },
        { type: "slider", filterMode: "none", height: 16, bottom: 8, showDetail: false, showDataShadow: false, brushSelect: false, borderColor: line, fillerColor: "rgba(11,94,168,0.18)", startValue: this.window[0], endValue: this.window[1], minValueSpan: 50 },
      ],
      series: [
        { type: "custom", clip: true, silent: true, z: 2, data: names.map((_, row) => [0, row]), encode: { x: 0, y: 1 }, renderItem: (params, api) => this.item(params, api) },
        { type: "custom", clip: true, silent: true, z: 3, data: [[0, 0]], encode: { x: 0, y: 1 }, renderItem: (params, api) => this.overlay(params, api) },
      ],
    }, { notMerge: true });
    this.mark();
  }

  /** The window that is shown, us. */
  shown() {
    const at = (x) => this.chart.convertFromPixel({ xAxisIndex: 0 }, x);
    return [at(this.left()), at(this.chart.getWidth() - RIGHT)];
  }

  /** The same while it is being drawn, with where that is. */
  view(params, api) {
    const { x, y, width, height } = params.coordSys;
    const zero = api.coord([0, 0])[0];
    const scale = (api.coord([this.length, 0])[0] - zero) / this.length;
    const from = (x - zero) / scale;
    return { x, y, width, height, from, to: from + width / scale, row: api.size([0, 1])[1] };
  }

  item(params, api) {
    const { lane, kind } = this.lanes[params.dataIndex];
    const view = this.view(params, api);
    const centre = api.coord([0, params.dataIndex])[1];
    const height = Math.round(view.row * 0.68), top = Math.round(centre - height / 2);
    if (kind === "periods") return this.periodItem(lane, view, top, height);
    const parts = lane.visible(view.from, view.to, Math.max(1, Math.round(view.width)));
    const children = [];
    parts.forEach((pairs, kind) => {
      const fill = this.colours[kind];
      if (!fill || pairs.length === 0) return;
      const moved = pairs.map((value, i) => (i % 2 === 0 ? value + view.x : value));
      children.push({ type: "strips", silent: true, shape: { pairs: moved, y: top, height }, style: { fill } });
    });
    return { type: "group", children };
  }

  periodItem(lane, view, top, height) {
    const within = [], out = [];
    for (const [x, width, fill, isOut] of lane.visible(view.from, view.to, Math.max(1, Math.round(view.width)))) {
      (isOut ? out : within).push(x + view.x + (width > 3 ? 0.5 : 0), width > 3 ? width - 1 : width, fill * height);
    }
    const frame = { type: "rect", silent: true, shape: { x: view.x, y: top, width: view.width, height }, style: { fill: colour("panel") } };
    const bars = (bars, name) => ({ type: "columns", silent: true, shape: { bars, bottom: top + height }, style: { fill: colour(name) } });
    return { type: "group", children: [frame, bars(within, "oncpu"), bars(out, "own")] };
  }

  /** Borders of periods as long as they can be told apart, and stretches with lost records. */
  overlay(params, api) {
    const view = this.view(params, api);
    const scale = view.width / (view.to - view.from);
    const at = (us) => view.x + (us - view.from) * scale;
    const children = [];
    const first = this.lanes[0];
    if (first && first.kind === "periods") {
      const { from_us, to_us } = first.lane.periods;
      const begin = above(to_us, view.from), end = above(from_us, view.to);
      if (end - begin < view.width / 8) {
        const xs = new Set();
        for (let i = begin; i < end; i++) { xs.add(at(from_us[i])); xs.add(at(to_us[i])); }
        children.push({ type: "borders", silent: true, shape: { xs: [...xs], top: view.y, bottom: view.y + view.height }, style: { stroke: colour("quiet"), lineWidth: 0.6, opacity: 0.55 } });
      }
    }
    const gaps = this.limit.gaps.map(([, from, to]) => [from, to]).concat(this.limit.broken_us);
    if (this.limit.cut_off_us !== null) gaps.push([this.limit.cut_off_us, this.length]);
    const pairs = gaps.filter(([from, to]) => to >= view.from && from <= view.to)
      .flatMap(([from, to]) => [at(Math.max(from, view.from)), Math.max((Math.min(to, view.to) - Math.max(from, view.from)) * scale, 2)]);
    if (pairs.length > 0) children.push({ type: "strips", silent: true, shape: { pairs, y: view.y, height: view.height }, style: { fill: colour("mark"), opacity: 0.3 } });
    return { type: "group", children };
  }

  zoomTo(from, to) {
    const span = Math.min(Math.max(to - from, 50), this.length);
    const start = Math.min(Math.max(from, 0), this.length - span);
    this.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: start, endValue: start + span });
  }

  /** Around the cursor, or the middle. */
  zoomBy(factor) {
    const [from, to] = this.window;
    const middle = this.cursor !== null && this.cursor >= from && this.cursor <= to ? this.cursor : (from + to) / 2;
    this.zoomTo(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  moveBy(part) {
    const [from, to] = this.window;
    const step = (to - from) * part;
    this.zoomTo(from + step, to + step);
  }

  /** To the throttle that begins after the cursor (or before it), of any level. */
  toThrottle(forward) {
    const starts = this.limit.levels.flatMap((level) => level.out_us.map(([from]) => from)).sort((a, b) => a - b);
    const here = this.cursor ?? (forward ? this.window[0] - 1 : this.window[1] + 1);
    const next = forward ? starts.find((start) => start > here) : starts.findLast((start) => start < here);
    if (next === undefined) return;
    this.jump(next, Math.min(this.length, (this.limit.period_ns / 1e3) * 4));
  }

  /** To the next request that is slow: at or above the 90th percentile of the limit's, the slowest among fewer than ten. */
  toSlow() {
    const walls = this.limit.requests.map((request) => request.wall_ns).sort((a, b) => a - b);
    if (walls.length === 0) return;
    const from = walls[Math.ceil(walls.length * 0.9) - 1];
    const slow = this.limit.requests.filter((request) => request.wall_ns >= from).sort((a, b) => a.from_us - b.from_us);
    const next = slow.find((request) => request.from_us > (this.cursor ?? -1)) ?? slow[0];
    this.showRequest(next);
  }

  showRequest(request) {
    const length = request.wall_ns / 1e3;
    this.row = Math.max(0, this.lanes.findIndex((lane) => lane.kind === "requests" && lane.stream === request.stream));
    this.zoomTo(request.from_us - length * 0.15, request.from_us + length * 1.15);
    this.point(request.from_us, this.row);
  }

  jump(us, width) {
    const [from, to] = this.window;
    const span = Math.min(to - from, width);
    this.zoomTo(us - span / 2, us + span / 2);
    this.point(us, this.row);
  }

  point(us, row) {
    this.cursor = us;
    this.row = row;
    this.mark();
    this.told(us, this.lanes[row]);
  }

  hover(x, y) {
    if (!this.chart.containPixel("grid", [x, y])) return;
    const [us, row] = this.chart.convertFromPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [x, y]);
    const place = Math.round(row);
    if (place >= 0 && place < this.lanes.length) this.point(us, place);
  }

  /** Draws the cursor, and a band over its lane. */
  mark() {
    const place = this.cursor === null || !this.lanes.length ? null
      : this.chart.convertToPixel({ xAxisIndex: 0, yAxisIndex: 0 }, [this.cursor, this.row]);
    const left = this.left(), right = this.chart.getWidth() - RIGHT;
    const inside = place && place[0] >= left && place[0] <= right;
    this.line.attr({ invisible: !inside });
    this.band.attr({ invisible: !place });
    if (!place) return;
    const bottom = this.chart.getHeight() - BOTTOM;
    this.line.attr({ shape: { x1: place[0], x2: place[0], y1: TOP, y2: bottom }, style: { stroke: colour("text"), lineWidth: 1 } });
    this.band.attr({ shape: { x: left, y: place[1] - ROW / 2, width: right - left, height: ROW }, style: { fill: colour("accent"), opacity: 0.12 } });
  }

  do(action) {
    switch (action) {
      case "in": return this.zoomBy(0.5);
      case "out": return this.zoomBy(2);
      case "left": return this.moveBy(-0.25);
      case "right": return this.moveBy(0.25);
      case "whole": return this.zoomTo(0, this.length);
      case "next": return this.toThrottle(true);
      case "prev": return this.toThrottle(false);
      case "slow": return this.toSlow();
      case "up": return this.point(this.cursor ?? (this.window[0] + this.window[1]) / 2, Math.max(0, this.row - 1));
      case "down": return this.point(this.cursor ?? (this.window[0] + this.window[1]) / 2, Math.min(this.lanes.length - 1, this.row + 1));
    }
  }

  resize() {
    this.chart.resize();
    this.draw();
  }

  dispose() {
    this.chart.dispose();
  }
}

const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", 0: "whole", n: "next", p: "prev", s: "slow" };
