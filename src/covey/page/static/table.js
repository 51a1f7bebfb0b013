// The table of runs: sorts, filters, and chooses what the charts show.
const AT_ONCE = 60; // rows that are drawn, and then as many more whenever a person has scrolled to the last
export const find = (id) => document.getElementById(id);
export const make = (name, values = {}, ...inside) => {
  const element = Object.assign(document.createElement(name), values);
  element.append(...inside);
  return element;
};

export const short = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value === 0) return "0";
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [size, sign] of steps) if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(4))}${sign}`;
  return `${Number(value.toPrecision(4))}`;
};

export const bytes = (value) => short(value).replace(/[kMGT]?$/, (sign) => ` ${sign}B`);
export const own = (id) => id.slice(id.lastIndexOf("/") + 1); // a run of a comparison without the name of that

// A SPEC that is too long for its line is broken behind "(" or "=", not inside a number.
const breakable = (text) => text.slice(0, 200).split(/([^(=]*[(=])/).filter(Boolean).flatMap((part) => [part, make("wbr")]).concat(text.slice(200));

const number = (name, head = name) => ({ name, head, value: (row) => row[name] });
const columns = (metrics) => [
  { name: "strategy", head: "run", text: (row) => row.strategy, note: (row) => own(row.id) },
  { name: "status", head: "status", text: (row) => row.status },
  number("workers"),
  ...metrics.map((metric) => ({ name: `metric ${metric}`, head: metric, value: (row) => row.metrics[metric] })),
  ...[number("loss"), number("seconds"), number("rate", "samples/s"), number("bytes")],
  { name: "began", head: "began", text: (row) => row.began.replace("T", " ").replace("Z", "") },
];

const words = (row) => `${row.id} ${row.strategy} ${row.status} ${row.task} ${row.engine} ${row.workers} workers`.toLowerCase();
const lines = new Map(); // id -> its element, the columns in it, and the row that it shows
let heads = "";
let drawn = AT_ONCE;
let below = null; // watches whether the end of the table is in sight

function compare(column, down) {
  const key = column.value || column.text;
  return (a, b) => {
    const [x, y] = [key(a), key(b)];
    const [none, other] = [x === null || x === undefined, y === null || y === undefined];
    if (none || other) return none - other; // a run without the number stays below, both ways
    const order = x < y ? -1 : x > y ? 1 : a.id < b.id ? -1 : 1;
    return down ? -order : order;
  };
}

function empty(id, shown) {
  const element = make("tr", {}, ...shown.map((column) => {
    const dot = () => make("button", { className: "dot", ariaLabel: `Show ${id} in the charts` });
    const cell = make("td", { className: column.value ? "number" : "" }, ...(column.note ? [dot(), make("span"), make("small")] : [""]));
    cell.dataset.column = column.name;
    return cell;
  }));
  element.dataset.run = id;
  return element;
}

// The elements of a row stay, and only their text changes: what a person is about to click does not go away.
function line(row, shown, colour) {
  const mark = shown.map((column) => column.name).join();
  let kept = lines.get(row.id);
  if (!kept || kept.mark !== mark) lines.set(row.id, kept = { mark, element: empty(row.id, shown) });
  if (kept.row === row && kept.colour === colour) return kept.element;
  kept.element.className = `${row.status}${colour ? " chosen" : ""}${row.parent ? " inside" : ""}`;
  shown.forEach((column, index) => {
    const cell = kept.element.cells[index];
    const text = column.value ? short(column.value(row)) : column.text(row);
    if (!column.note) {
      if (cell.firstChild.data !== text) cell.firstChild.data = text;
    } else {
      const name = cell.childNodes[1];
      if (name.textContent !== text) name.replaceChildren(...breakable(text));
      cell.firstChild.style.background = colour;
      cell.firstChild.setAttribute("aria-pressed", Boolean(colour));
      Object.assign(cell.lastChild, { textContent: column.note(row), title: row.id });
    }
  });
  Object.assign(kept, { row, colour });
  return kept.element;
}

function drawHeads(shown, sorted, down, actions) {
  const mark = `${shown.map((column) => column.name).join()} ${sorted.name} ${down}`;
  if (heads === mark) return;
  heads = mark;
  find("heads").replaceChildren(...shown.map((column) => {
    const button = make("button", { textContent: column.head, title: column.head, onclick: () => actions.sort(column.name) });
    const head = make("th", { className: column.value ? "number" : "" }, button);
    if (column === sorted) head.ariaSort = down ? "descending" : "ascending";
    head.dataset.column = column.name;
    return head;
  }));
}

// Every word is somewhere in the row; "4 workers" are four, and not a 4 somewhere.
function filter(text) {
  const many = /\b(\d+)\s+workers?\b/;
  const [, workers] = text.match(many) || [];
  const wanted = text.replace(many, " ").toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => (!workers || row.workers === Number(workers)) && (!wanted.length || wanted.every((word) => words(row).includes(word)));
}

// By time, the runs of a comparison stand below it.
function grouped(rows, known) {
  const groups = new Map();
  for (const row of rows) {
    const name = known.has(row.parent) ? row.parent : row.id;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name)[row.id === name ? "unshift" : "push"](row);
  }
  return [...groups.values()].flat();
}

export function drawTable(state, actions) {
  const rows = [...state.rows.values()];
  const metrics = [...new Set(rows.flatMap((row) => Object.keys(row.metrics)))].slice(0, 3);
  const shown = columns(metrics);
  const sorted = shown.find((column) => column.name === state.sort.column) || shown[0];
  drawHeads(shown, sorted, state.sort.down, actions);
  const ordered = rows.filter(filter(state.filter)).sort(compare(sorted, state.sort.down));
  const fitting = sorted.name === "began" ? grouped(ordered, state.rows) : ordered;
  const body = find("rows");
  const elements = fitting.slice(0, drawn).map((row) => line(row, shown, actions.colour(row.id)));
  const same = elements.length === body.children.length && elements.every((one, index) => body.children[index] === one);
  if (!same) body.replaceChildren(...elements);
  for (const id of lines.keys()) if (!state.rows.has(id)) lines.delete(id);
  body.onclick = (event) => {
    const row = event.target.closest("tr");
    if (row) actions.choose(row.dataset.run);
  };
  const running = rows.filter((row) => row.status === "running").length;
  find("count").textContent = `${fitting.length} of ${rows.length} runs, ${running} running`;
  find("more").textContent = fitting.length > drawn ? `${fitting.length - drawn} more` : "";
  if (below) below.disconnect();
  below = new IntersectionObserver(([end]) => {
    if (!end.isIntersecting || fitting.length <= drawn) return;
    drawn += AT_ONCE;
    drawTable(state, actions);
  });
  below.observe(find("more"));
}
