// Charts of what the chosen runs measured, over time, samples or bytes.
import { make, short } from "./table.js";

const MOST_POINTS = 800; // of a run in a chart
const OURS = ["seconds", "samples", "bytes", "at", "loss", "measured"];
const MEASURED = { consensus: "consensus distance of the replicas", compression: "compression error (share of the norm)", noise: "gradient noise scale (samples)",
  "round reports": "reports in a round", "round drop-outs": "chosen clients that dropped out", "round seconds": "seconds of a round", "clients there": "clients that were there" };
const plots = new Map(); // name -> { plot, shape }

// Per second since the last moment that is not far nearer than usual: moments in which the phase changed lie
// milliseconds apart, and a batch that is told of between two of them would be a peak.
export const rate = (name) => ({ seconds, [name]: values }) => {
  const gaps = seconds.map((at, index) => at - seconds[Math.max(0, index - 1)]).filter((gap) => gap > 0).sort((a, b) => a - b);
  const least = (gaps[gaps.length >> 1] || 0) / 2;
  let before = 0;
  return values.map((value, index) => {
    const time = seconds[index] - seconds[before];
    if (time <= 0 || time < least) return null;
    const per = (value - values[before]) / time;
    before = index;
    return per;
  });
};
const column = (name) => (moments) => moments[name];

const MOMENTS = [
  { name: "loss", title: "training loss", of: column("loss") },
  { name: "throughput", title: "samples per second", of: rate("samples") },
  { name: "traffic", title: "bytes sent per second", of: rate("bytes") },
  { name: "staleness", title: "staleness (updates)", of: column("staleness") },
];

function thinned(xs, ys) {
  const known = (value) => value !== null && value !== undefined;
  const points = xs.map((x, index) => [x, ys[index]]).filter((pair) => pair.every(known)).sort((a, b) => a[0] - b[0]);
  const step = Math.ceil(points.length / MOST_POINTS);
  const kept = points.filter((_, index) => index % step === 0 || index === points.length - 1)
    .filter(([x], index, all) => index === 0 || x > all[index - 1][0]);
  return [kept.map(([x]) => x), kept.map(([, y]) => y)];
}

const over = (rows, axis, of) => thinned(rows.map((row) => row[axis]), rows.map(of));

function curves(run, axis) {
  const found = new Map();
  for (const name of new Set(run.series.scores.flatMap((row) => Object.keys(row)))) {
    if (!OURS.includes(name)) found.set(name, { title: name, data: over(run.series.scores, axis, (row) => row[name]) });
  }
  for (const [name, title] of Object.entries(MEASURED)) {
    const told = run.series.scores.filter((row) => row.measured && row.measured[name] !== undefined);
    if (told.length) found.set(name, { title, data: over(told, axis, (row) => row.measured[name]) });
  }
  const { moments } = run.series;
  for (const { name, title, of } of MOMENTS) {
    if (moments[name] || moments.samples) found.set(name, { title, data: thinned(moments[axis] || [], of(moments) || []) });
  }
  return [...found].filter(([, { data }]) => data[0].length > 1);
}

// Of a curve that never changes, a little above and below it; uPlot itself draws zeros on an axis up to 100.
export function within(_, low, high) {
  if (low !== high || low === null) return uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true);
  const aside = Math.abs(low) / 10 || 1;
  return [low >= 0 ? Math.max(0, low - aside) : low - aside, high + aside];
}

function drawn(place, name, title, runs, tables, axis) {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue("--soft").trim();
  const grid = { stroke: style.getPropertyValue("--line").trim(), width: 1 };
  const data = uPlot.join(tables);
  const width = Math.max(220, place.querySelector("div").clientWidth);
  const shape = [runs.map((run) => `${run.number}${run.label}`).join(), axis, ink, width].join("|");
  const before = plots.get(name);
  if (before && before.shape === shape) return before.plot.setData(data);
  if (before) before.plot.destroy();
  const axes = { stroke: ink, grid, ticks: grid, font: "12px system-ui" };
  const plot = new uPlot({
    width, height: 200, title: "", legend: { live: false, show: false }, cursor: { points: { size: 6 } },
    scales: { x: { time: axis === "at" }, y: { range: within } },
    padding: [8, 14, 0, 0],
    axes: [{ ...axes, ...(axis === "at" ? {} : { values: (_, ticks) => ticks.map(short) }), space: 60, size: 30 },
      { ...axes, size: 52, values: (_, ticks) => ticks.map(short) }],
    series: [{}, ...runs.map((run) => ({
      label: run.label, width: 2, spanGaps: true, stroke: style.getPropertyValue(`--run${run.number}`).trim(),
      points: { size: 4 },
    }))],
    hooks: { setCursor: [(self) => { place.querySelector("output").textContent = under(self, runs, axis); }] },
  }, data, place.querySelector("div"));
  return plots.set(name, { plot, shape });
}

function under(plot, runs, axis) { // what lies below the pointer
  const { idx } = plot.cursor;
  if (idx === null || idx === undefined) return "";
  const x = plot.data[0][idx];
  const told = runs.map((run, index) => [run.label, plot.data[index + 1][idx]]).filter(([, y]) => y !== null && y !== undefined);
  const where = axis === "at" ? new Date(x * 1000).toLocaleTimeString() : `${short(x)} ${axis}`;
  return `${told.map(([label, y]) => `${label} ${short(y)}`).join(", ")} at ${where}`;
}

export function drawCharts(place, runs, axis) {
  const named = new Map(); // name of a chart -> its title, runs and tables
  for (const run of runs) {
    for (const [name, { title, data }] of curves(run, axis)) {
      if (!named.has(name)) named.set(name, { title, runs: [], tables: [] });
      named.get(name).runs.push(run);
      named.get(name).tables.push(data);
    }
  }
  for (const figure of [...place.children]) {
    if (!named.has(figure.dataset.chart)) {
      plots.get(figure.dataset.chart)?.plot.destroy();
      plots.delete(figure.dataset.chart);
      figure.remove();
    }
  }
  for (const [name, { title, runs: shown, tables }] of named) {
    let figure = [...place.children].find((one) => one.dataset.chart === name);
    if (!figure) {
      figure = make("figure", {}, make("figcaption", {}, title, make("output")), make("div"));
      figure.dataset.chart = name;
      place.append(figure);
    }
    drawn(figure, name, title, shown, tables, axis);
  }
}
