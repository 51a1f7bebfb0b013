// The table and the charts follow one stream of server-sent events. Text from records is only ever set as textContent.
import { drawCharts } from "./charts.js";
import { drawCluster } from "./cluster.js";
import { drawEndpoints } from "./endpoints.js";
import { drawQueue } from "./queue.js";
import { drawStudy } from "./study.js";
import { drawTable, find, make, own } from "./table.js";

const MOST_SHOWN = 10; // runs in a chart: as many as there are colours
const state = {
  rows: new Map(), chosen: [], series: new Map(), filter: "", sort: { column: "began", down: true }, axis: "seconds",
};
let touched = false; // whether a person has chosen runs

const colour = (id) => (state.chosen.includes(id) ? `var(--run${state.chosen.indexOf(id)})` : "");

function choose(id) {
  touched = true;
  state.chosen = state.chosen.includes(id) ? state.chosen.filter((one) => one !== id) : [...state.chosen, id];
  if (state.chosen.length > MOST_SHOWN) state.chosen.shift();
  for (const known of state.series.keys()) if (!state.chosen.includes(known)) state.series.delete(known);
  showTable();
  follow(state.chosen);
}

const showTable = () => drawTable(state, { choose, colour, sort: (column) => {
  state.sort = { column, down: state.sort.column === column ? !state.sort.down : false };
  showTable();
} });

const fetching = new Map(); // id -> whether it has changed again meanwhile

async function fetchRun(id) {
  if (fetching.has(id)) return fetching.set(id, true);
  fetching.set(id, false);
  try {
    const before = state.series.get(id);
    const query = new URLSearchParams({ id, since: before ? before.cursor : "" });
    const answer = await fetch(`run?${query}`);
    if (!answer.ok) throw new Error(await answer.text());
    const news = await answer.json();
    if (!state.chosen.includes(id)) return undefined;
    state.series.set(id, before && !news.whole ? joined(before, news) : news);
  } catch (error) {
    if (state.chosen.includes(id) && !state.series.has(id)) {
      state.series.set(id, { cursor: "", moments: { at: [] }, scores: [], lines: [[0, error.message]], facts: {} });
    }
  } finally {
    const again = fetching.get(id);
    fetching.delete(id);
    if (again) fetchRun(id).then(showDetail);
  }
  return undefined;
}

function joined(before, news) {
  for (const name of Object.keys(news.moments)) before.moments[name].push(...news.moments[name]);
  before.scores.push(...news.scores);
  before.lines.push(...news.lines);
  return { ...before, cursor: news.cursor, phase: news.phase || before.phase, now: news.now || before.now, study: news.study };
}

async function follow(ids) {
  await Promise.all(ids.map(fetchRun));
  showDetail();
}

function showDetail() {
  const shown = state.chosen.filter((id) => state.rows.has(id) && state.series.has(id));
  const last = shown.at(-1), row = state.rows.get(last);
  find("title").textContent = shown.length > 1 ? `${shown.length} runs` : row ? row.strategy : "Choose runs in the table";
  const strategies = shown.map((id) => state.rows.get(id).strategy);
  const label = (id, index) => strategies.filter((one) => one === strategies[index]).length > 1
    ? `${strategies[index]} ${own(id).split("-").pop()}` : strategies[index];
  showChosen(shown.length > 1 ? shown : [], label);
  drawCharts(find("charts"), shown.map((id, index) => ({
    id, label: label(id, index), number: state.chosen.indexOf(id), series: state.series.get(id),
  })), state.axis);
  const drawable = shown.filter((id) => state.series.get(id).now).pop();
  drawCluster(find("cluster"), state.series.get(drawable), shown.length > 1 && label(drawable, shown.indexOf(drawable)));
  drawStudy(find("study"), shown.map((id) => state.series.get(id).study).filter(Boolean).pop());
  showWords(last && state.series.get(last), row);
}

// Which colour is which run, as their rows may be filtered away; a click takes one out.
function showChosen(ids, label) {
  find("chosen").replaceChildren(...ids.map((id, index) => {
    const text = label(id, index);
    const button = make("button", { title: id, ariaLabel: `Take ${id} out of the charts`, onclick: () => choose(id) });
    button.append(make("i"), text);
    button.firstChild.style.background = colour(id);
    return make("li", {}, button);
  }));
}

function showWords(series, row) {
  const lines = series ? series.lines.slice(-8) : [];
  if (row && row.why && !lines.some(([at, line]) => !at && line === row.why)) lines.push([0, row.why]);
  const empty = !find("charts").children.length && find("cluster").hidden && find("study").hidden;
  if (series && row && !lines.length && empty) {
    lines.push([0, row.status === "running" ? `${series.phase || "starting"}: no numbers yet` : "no numbers were recorded"]);
  }
  const timed = ([at, line]) => (at ? `${new Date(at * 1000).toLocaleTimeString()}  ${line}` : line);
  find("lines").replaceChildren(...lines.map((line) => make("li", { textContent: timed(line) })));
  const facts = Object.entries((series && series.facts) || {});
  find("facts").hidden = !facts.length;
  find("facts").querySelector("dl").replaceChildren(...facts.flatMap(([name, value]) => [
    make("dt", { textContent: name }), make("dd", { textContent: typeof value === "object" ? JSON.stringify(value) : value }),
  ]));
}

function hear(word) {
  if (word.all) state.rows.clear();
  for (const row of word.rows) state.rows.set(row.id, row);
  for (const id of word.gone) state.rows.delete(id);
  state.chosen = state.chosen.filter((id) => state.rows.has(id));
  find("folder").textContent = word.folder;
  find("trouble").textContent = word.trouble;
  find("trouble").hidden = !word.trouble;
  drawEndpoints(find("endpoints"), word.endpoints);
  drawQueue(find("queue"), word.queue);
  const runs = [...state.rows.values()].filter((row) => row.kind === "run");
  // the newest, until a person has chosen
  if (!touched && runs.length) state.chosen = [runs.reduce((a, b) => (b.began > a.began ? b : a)).id];
  showTable();
  const changed = new Set(word.rows.map((row) => row.id));
  const wanted = state.chosen.filter((id) => changed.has(id) || !state.series.has(id));
  if (wanted.length) follow(wanted); else showDetail();
}

const SILENT = 8000; // milliseconds after which a server that says nothing has stopped; it speaks every 3 s
const stream = new EventSource("events");
let heard = 0; // when, while connected
const told = (text, good) => Object.assign(find("live"), { textContent: text, className: good ? "good" : "" });
const alive = () => { heard = Date.now(); told("live", true); };
stream.onmessage = (message) => { alive(); hear(JSON.parse(message.data)); };
stream.addEventListener("beat", alive);
stream.onopen = alive;
stream.onerror = () => { heard = 0; told("not connected: is `covey page` running?", false); };
setInterval(() => {
  if (heard && Date.now() - heard > SILENT) told(`no answer for ${Math.round((Date.now() - heard) / 1000)} s: is \`covey page\` stopped?`, false);
}, 1000);
find("filter").addEventListener("input", (event) => { state.filter = event.target.value; showTable(); });
find("axis").addEventListener("change", (event) => { state.axis = event.target.value; showDetail(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showDetail);
let resized;
window.addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(showDetail, 100); });
