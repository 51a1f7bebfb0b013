// The cluster: roles by what they do, links by bytes per second, dashed lines to whom a role waits for.
import { bytes, make as element, short } from "./table.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, MOST_WIDE = 7; // of the drawing, less on a narrow screen: text keeps its size
const DOES = { c: "computes", w: "waits", s: "stands still" };
const views = new WeakMap(); // series -> the two last views, from which rates come

export function make(name, attributes, parent, title) { // an element of a drawing
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (title) make("title", {}, element).textContent = title;
  if (parent) parent.append(element);
  return element;
}

// Bytes per second of training between the last two views; since the beginning where there is only one.
function rates(series) {
  const { now } = series;
  let pair = views.get(series.moments);
  if (!pair || pair.now.seconds > now.seconds) pair = { now, before: null };
  else if (pair.now.seconds < now.seconds) pair = { now, before: pair.now };
  views.set(series.moments, pair);
  const before = new Map((pair.before ? pair.before.links : []).map(([from, to, size]) => [`${from}>${to}`, size]));
  const time = pair.now.seconds - (pair.before ? pair.before.seconds : 0);
  return pair.now.links.map(([from, to, size]) => {
    const rate = time > 0 ? Math.max(0, size - (before.get(`${from}>${to}`) || 0)) / time : 0;
    return { from, to, rate };
  });
}

// Workers on a circle; servers and masters inside it.
function places(names, width, height) {
  const [workers, others] = [names.filter((name) => name.startsWith("worker")), names.filter((name) => !name.startsWith("worker"))];
  const found = new Map();
  const around = (group, wide, high) => group.forEach((name, index) => {
    const angle = (2 * Math.PI * (index + 0.5)) / group.length - Math.PI / 2;
    found.set(name, [width / 2 + wide * Math.cos(angle), height / 2 + high * Math.sin(angle)]);
  });
  if (others.length === 1 && workers.length) found.set(others[0], [width / 2, height / 2]);
  else around(others, workers.length ? width * 0.17 : width * 0.42, workers.length ? height * 0.17 : height * 0.4);
  around(workers, width * 0.43, height * 0.4);
  return found;
}

function bent([x, y], [u, v], aside) { // the two directions of a link bend to two sides
  const [dx, dy] = [u - x, v - y];
  const length = Math.hypot(dx, dy) || 1;
  const [mx, my] = [(x + u) / 2 - (dy / length) * aside, (y + v) / 2 + (dx / length) * aside];
  return `M${x.toFixed(1)} ${y.toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${u.toFixed(1)} ${v.toFixed(1)}`;
}

function drawSmall(place, series) {
  const { now } = series;
  const names = Object.keys(now.roles);
  const height = names.length > 24 ? 480 : 300;
  const size = names.length > 24 ? 9 : 15;
  const width = Math.min(WIDTH, Math.max(WIDTH / 2, place.clientWidth - 16));
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "The roles and links of the run" });
  const at = places(names, width, height);
  const links = rates(series);
  const most = Math.max(1, ...links.map((link) => link.rate));
  for (const { from, to, rate } of links) {
    if (at.has(from) && at.has(to)) {
      const path = { d: bent(at.get(from), at.get(to), 10), class: "link", "stroke-width": (0.5 + (MOST_WIDE * rate) / most).toFixed(2) };
      make("path", path, svg, `${from} → ${to}: ${bytes(rate)}/s`).dataset.link = `${from}>${to}`;
    }
  }
  for (const [from, to] of now.waits) {
    if (at.has(from) && at.has(to)) make("path", { d: bent(at.get(from), at.get(to), -12), class: "wait" }, svg, `${from} waits for ${to}`);
  }
  const ranks = new Map();
  for (const name of names) {
    const kind = name.slice(0, Math.max(0, name.lastIndexOf(" ")));
    ranks.set(kind, (ranks.get(kind) ?? -1) + 1);
    const role = now.roles[name];
    const does = now.states[kind][ranks.get(kind)];
    const told = [`${name} ${DOES[does]}`, role.waiting ? `for ${role.waiting}, ${short(role.waited || 0)} s` : "",
      role.step >= 0 ? `step ${role.step}` : "", role.staleness !== undefined ? `staleness ${short(role.staleness)}` : ""];
    const [x, y] = at.get(name);
    const group = make("g", { class: `role ${kind === "worker" ? "worker" : "server"} ${does}` }, svg, told.filter(Boolean).join(", "));
    group.dataset.role = name;
    if (kind === "worker") make("circle", { cx: x, cy: y, r: size }, group);
    else make("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, rx: 3 }, group);
    make("text", { x, y: y + 4 }, group).textContent = size > 10 ? `${name[0]}${name.replace(/\D+/g, "")}` : "";
    if (role.staleness && size > 10) make("text", { x, y: y + size + 13, class: "small" }, group).textContent = `${Number(role.staleness.toPrecision(2))} stale`;
  }
  place.replaceChildren(svg, legend(most > 1 ? `thickest link: ${bytes(most)}/s` : ""));
}

function drawLarge(place, series) { // one dot each, on a canvas: ten thousand elements would be slow
  const { now } = series;
  const style = getComputedStyle(document.documentElement);
  const colours = { c: "--computes", w: "--waits", s: "--still" };
  const total = Object.values(now.states).reduce((sum, letters) => sum + letters.length, 0);
  const across = Math.max(1, Math.min((place.clientWidth || WIDTH) - 20, 900));
  const step = Math.max(3, Math.floor(Math.sqrt((across * 260) / total)));
  const columns = Math.floor(across / step);
  const parts = [];
  for (const [kind, letters] of Object.entries(now.states)) {
    const canvas = element("canvas");
    const ratio = window.devicePixelRatio || 1;
    const rows = Math.ceil(letters.length / columns);
    [canvas.width, canvas.height] = [columns * step * ratio, rows * step * ratio];
    canvas.style.width = `${columns * step}px`;
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    const ink = Object.fromEntries(Object.entries(colours).map(([letter, name]) => [letter, style.getPropertyValue(name)]));
    for (let index = 0; index < letters.length; index += 1) {
      paint.fillStyle = ink[letters[index]];
      paint.fillRect((index % columns) * step, Math.floor(index / columns) * step, step - 1, step - 1);
    }
    const waiting = letters.split("w").length - 1;
    const computing = letters.split("c").length - 1;
    const textContent = `${letters.length} × ${kind}: ${computing + waiting ? `${computing} compute, ${waiting} wait` : now.phase}`;
    parts.push(element("p", { textContent }), canvas);
  }
  const links = rates(series).map(({ from, to, rate }) => `${from} → ${to} ${bytes(rate)}/s`);
  const waits = now.waits.map(([from, to, count]) => `${count} × ${from} wait for ${to}`);
  place.replaceChildren(...parts, legend([...links, ...waits].join(" · ")));
}

function legend(text) {
  const swatches = Object.values(DOES).flatMap((does) => [element("i", { className: does.split(" ").pop() }), ` ${does}   `]);
  return element("p", { className: "legend" }, ...swatches, text);
}

export function drawCluster(place, series, name) {
  place.hidden = !series || !series.now;
  if (place.hidden) return;
  if (Object.keys(series.now.roles).length) drawSmall(place, series);
  else drawLarge(place, series);
  if (name) place.prepend(element("p", { textContent: name })); // which of several runs it is of
}
