"use strict";
// The figures: wall time by limit, shares, distribution, slowest requests, phase.

const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#7570b3"];

function axis(extra) {
  return {
    axisLabel: { color: colour("quiet"), hideOverlap: true }, axisLine: { lineStyle: { color: colour("line") } },
    nameTextStyle: { color: colour("quiet") }, splitLine: { lineStyle: { color: colour("line") } }, ...extra,
  };
}

function base(extra) {
  return {
    animation: false, color: LINES, textStyle: { color: colour("text") },
    legend: { top: 0, textStyle: { color: colour("text") }, itemWidth: 14, itemHeight: 10, type: "plain" },
    grid: { left: 52, right: 16, top: 52, bottom: 44 },
    tooltip: { trigger: "item", confine: true, backgroundColor: colour("panel"), borderColor: colour("line"), textStyle: { color: colour("text") } },
    ...extra,
  };
}

const ms = (ns) => (ns ?? 0) / 1e6;

/** Stands a bar from one value to another, by a base that is not seen. */
function range(name, stack, fill, pairs) {
  const bottom = { type: "bar", stack, silent: true, itemStyle: { color: "transparent" }, tooltip: { show: false }, data: pairs.map((pair) => pair && pair[0]) };
  const top = {
    name, type: "bar", stack, barMinHeight: 2, itemStyle: { color: fill },
    tooltip: { formatter: ({ dataIndex, name: limit }) => `${name} at ${limit}: ${pairs[dataIndex].map((value) => value.toFixed(1)).join(" to ")} ms` },
    data: pairs.map((pair) => pair && pair[1] - pair[0]),
  };
  return [bottom, top];
}

function latency(chart) {
  const rows = DATA.summary.limits.filter((row) => row.n > 0);
  const closed = new Map(DATA.curve.map((point) => [`${point.millicores}m`, point]));
  const measured = rows.map((row) => [ms(row.p50_ns), ms(row.max_ns)]);
  const formula = rows.map((row) => {
    const point = closed.get(row.limit);
    return point ? [ms(point.best_ns), ms(point.worst_ns)] : null;
  });
  const model = rows.map((row) => (row.model ? [ms(row.model.p50_ns), ms(row.model.max_ns)] : null));
  const series = [
    ...range("measured, median to maximum", "measured", LINES[0], measured),
    ...range("model, median to maximum", "model", LINES[4], model),
    ...range("closed form, best to worst", "closed", LINES[6], formula),
  ];
  chart.setOption(base({
    legend: { top: 0, textStyle: { color: colour("text") }, itemWidth: 14, itemHeight: 10, data: series.filter((one) => one.name).map((one) => one.name) },
    grid: { left: 52, right: 16, top: 66, bottom: 44 },
    xAxis: axis({ type: "category", data: rows.map((row) => row.limit), name: "CPU limit", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "value", min: 0 }),
    series,
  }), true);
}

function shares(chart) {
  const rows = DATA.summary.limits.filter((row) => row.n > 0 && row.observed);
  const limits = rows.map((row) => DATA.limits.find((limit) => limit.limit === row.limit));
  const colours = kindColours();
  const total = limits.map((limit) => limit.requests.reduce((sum, request) => sum + request.wall_ns, 0));
  const series = DATA.kinds.slice(0, IDLE).map((name, kind) => ({
    name, type: "bar", stack: "share", itemStyle: { color: colours[kind] },
    tooltip: { formatter: ({ name: limit, value }) => `${name} at ${limit}: ${value.toFixed(1)} %` },
    data: limits.map((limit, i) => (total[i] > 0 ? (100 * limit.requests.reduce((sum, request) => sum + request.shares_ns[kind], 0)) / total[i] : 0)),
  }));
  chart.setOption(base({
    grid: { left: 44, right: 16, top: 66, bottom: 44 },
    xAxis: axis({ type: "category", data: rows.map((row) => row.limit), name: "CPU limit", nameLocation: "middle", nameGap: 28, splitLine: { show: false } }),
    yAxis: axis({ type: "value", min: 0, max: 100 }),
    series,
  }), true);
}

function cdf(chart) {
  const series = DATA.limits.filter((limit) => limit.requests.length > 0).map((limit) => {
    const walls = limit.requests.map((request) => request.wall_ns / 1e6).sort((a, b) => a - b);
    const points = [[walls[0], 0], ...walls.map((wall, i) => [wall, (i + 1) / walls.length])];
    return { name: limit.limit, type: "line", step: "end", showSymbol: false, lineStyle: { width: 2 }, sampling: "lttb", data: points };
  });
  chart.setOption(base({
    tooltip: { trigger: "axis", confine: true, valueFormatter: (share) => `${(share * 100).toFixed(0)} %`, backgroundColor: colour("panel"), borderColor: colour("line"), textStyle: { color: colour("text") } },
    xAxis: axis({ type: "value", name: "wall time, ms", nameLocation: "middle", nameGap: 28, scale: true }),
    yAxis: axis({ type: "value", min: 0, max: 1 }),
    series,
  }), true);
}

/** Bars of the slowest request of each limit, from its start. */
function slowest(chart) {
  const rows = DATA.limits.filter((limit) => limit.requests.length > 0).map((limit) => ({
    limit: limit.limit,
    request: limit.requests.reduce((slowest, request) => (request.wall_ns > slowest.wall_ns ? request : slowest)),
  }));
  const colours = kindColours();
  const lanes = rows.map(({ request }) => Lane.ofCourse({ name: "", from_us: 0, course: request.course, merged_us: 0 }));
  const longest = Math.max(1, ...rows.map(({ request }) => request.wall_ns / 1e6));
  chart.setOption(base({
    legend: { show: false }, grid: { left: 84, right: 20, top: 10, bottom: 44 },
    tooltip: {
      trigger: "item", confine: true, backgroundColor: colour("panel"), borderColor: colour("line"), textStyle: { color: colour("text") },
      formatter: ({ dataIndex }) => `request ${rows[dataIndex].request.request} at ${rows[dataIndex].limit}: ${msOfNs(rows[dataIndex].request.wall_ns)} ms`,
    },
    xAxis: axis({ type: "value", min: 0, max: longest, axisLabel: { color: colour("quiet"), formatter: (value) => value.toFixed(0), hideOverlap: true } }),
    yAxis: axis({ type: "category", inverse: true, data: rows.map((row) => row.limit), splitLine: { show: false }, axisTick: { show: false } }),
    series: [{
      type: "custom", data: rows.map(({ request }, row) => [request.wall_ns / 1e6, row]), encode: { x: 0, y: 1 }, clip: true,
      renderItem(params, api) {
        const [x, y] = api.coord([0, params.dataIndex]);
        const scale = api.coord([1, params.dataIndex])[0] - x;
        const height = Math.min(26, api.size([0, 1])[1] * 0.6);
        const lane = lanes[params.dataIndex];
        const children = [];
        for (let i = 0; i < lane.kinds.length; i++) {
          const fill = colours[lane.kinds[i]];
          const width = ((lane.edges[i + 1] - lane.edges[i]) / 1e3) * scale;
          if (fill) children.push({ type: "rect", shape: { x: x + (lane.edges[i] / 1e3) * scale, y: y - height / 2, width, height }, style: { fill } });
        }
        return { type: "group", children };
      },
    }],
  }), true);
}

function phase(chart, limit) {
  const points = limit.requests.filter((request) => request.phase_ns !== null)
    .map((request) => [request.phase_ns / 1e6, request.wall_ns / 1e6, request.request]);
  chart.setOption(base({
    xAxis: axis({ type: "value", min: 0, max: limit.period_ns / 1e6 }),
    yAxis: axis({ type: "value", min: 0 }),
    series: [
      { name: "measured", type: "scatter", symbolSize: 7, itemStyle: { color: LINES[0], opacity: 0.75 }, data: points,
        tooltip: { formatter: ({ value }) => `request ${value[2]}: ${value[1].toFixed(1)} ms, begun ${value[0].toFixed(1)} ms after a refill` } },
      { name: "closed form, one quota", type: "line", showSymbol: false, silent: true, lineStyle: { width: 1.5 }, itemStyle: { color: LINES[6] }, data: limit.closed_form.map(([at, wall]) => [at / 1e6, wall / 1e6]) },
    ],
  }), true);
}

/** All figures, drawn again when the colours or the width change. */
class Figures {
  constructor() {
    const of = (id, draw) => ({ chart: echarts.init(document.getElementById(id), null, { renderer: "svg" }), draw });
    this.all = [of("f-latency", latency), of("f-shares", shares), of("f-cdf", cdf), of("f-slowest", slowest)];
    this.phase = of("f-phase", (chart) => this.limit && phase(chart, this.limit));
    this.all.push(this.phase);
  }

  draw() {
    for (const { chart, draw } of this.all) draw(chart);
  }

  select(limit) {
    this.limit = limit;
    this.phase.draw(this.phase.chart);
  }

  resize() {
    for (const { chart } of this.all) chart.resize();
  }
}
