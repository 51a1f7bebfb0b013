// A search: the curve of each trial, the best in colour, and the best trials as a table.
import { make } from "./cluster.js";
import { make as element, short } from "./table.js";

const WIDTH = 640, HEIGHT = 200, ROWS = 12; // of the drawing; and trials in the table

const known = (curve) => curve.filter(([, value]) => value !== null);
const last = (trial) => (trial.status === "failed" ? null : known(trial.curve).at(-1)?.[1] ?? null);
const settings = (point) => Object.entries(point).map(([name, value]) => `${name}=${typeof value === "number" ? short(value) : value}`).join(" ");

function drawCurves(study) {
  const points = study.trials.flatMap((trial) => known(trial.curve));
  const [most, values] = [Math.max(1, ...points.map(([epochs]) => epochs)), points.map(([, value]) => value)];
  const low = Math.min(...values), high = Math.max(...values);
  const at = ([epochs, value]) => `${((epochs / most) * (WIDTH - 20) + 10).toFixed(1)} ${(HEIGHT - 10 - ((value - low) / (high - low || 1)) * (HEIGHT - 20)).toFixed(1)}`;
  const label = `${study.metric} of each trial, from ${short(low)} to ${short(high)}, over ${most} epochs`;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  const ordered = [...study.trials].sort((a, b) => (a.number === study.best) - (b.number === study.best)); // the best on top
  for (const trial of ordered) {
    const path = known(trial.curve);
    const kind = trial.number === study.best ? "trial best" : "trial";
    const title = `trial ${trial.number}: ${study.metric} ${short(last(trial))} (${trial.status})`;
    if (path.length === 1) make("circle", { cx: at(path[0]).split(" ")[0], cy: at(path[0]).split(" ")[1], r: 2.5, class: kind }, svg, title);
    if (path.length > 1) make("path", { d: `M${path.map(at).join("L")}`, class: kind }, svg, title);
  }
  return [svg, element("p", { textContent: label })];
}

export function drawStudy(place, study) {
  place.hidden = !study;
  if (!study) return place.replaceChildren();
  const sign = study.better === "higher" ? -1 : 1;
  const rank = (trial) => (trial.number === study.best ? -Infinity : last(trial) === null ? Infinity : sign * last(trial));
  const ordered = [...study.trials].sort((a, b) => rank(a) - rank(b) || a.number - b.number);
  const cells = (trial) => [trial.number, short(last(trial)), trial.curve.at(-1)?.[0] ?? 0, trial.why || trial.status, settings(trial.point)];
  const line = (values, kind) => element("tr", {}, ...values.map((value) => element(kind, { textContent: value })));
  const rows = ordered.slice(0, ROWS).map((trial) => line(cells(trial), "td"));
  const head = element("thead", {}, line(["trial", study.metric, "epochs", "status", "settings"], "th"));
  const more = study.trials.length > ROWS ? [element("p", { textContent: `… and ${study.trials.length - ROWS} more` })] : [];
  const drawn = study.trials.some((trial) => known(trial.curve).length) ? drawCurves(study) : [];
  return place.replaceChildren(...drawn, element("table", {}, head, element("tbody", {}, ...rows)), ...more);
}
