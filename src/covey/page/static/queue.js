// A queue of jobs: who had which slot when.
import { make } from "./cluster.js";
import { make as element, short } from "./table.js";

const WIDTH = 640, LANE = 18, NAMED = 36; // of the drawing, of a slot, and of a time in which the name of its job fits
const COLOURS = 10;

export function drawQueue(place, queue) {
  const times = queue ? queue.times : [];
  place.hidden = !times.length;
  if (!times.length) return place.replaceChildren();
  const first = Math.min(...times.map((one) => one.began));
  const until = Math.max(first + 1, ...times.map((one) => one.ended ?? Date.now() / 1000));
  const lanes = Math.max(queue.slots, ...times.map((one) => one.slot + 1));
  const label = `${queue.slots} slots over ${short(until - first)} s, policy ${queue.policy}`;
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${lanes * LANE}`, role: "img", "aria-label": label });
  const x = (at) => ((at - first) / (until - first)) * WIDTH;
  for (const one of times) {
    const end = one.ended ?? until;
    const group = make("g", { class: "slot" }, svg, `job ${one.job}: ${short(end - one.began)} s`);
    const box = { x: x(one.began).toFixed(1), y: one.slot * LANE + 1, width: Math.max(1, x(end) - x(one.began)).toFixed(1), height: LANE - 2 };
    make("rect", { ...box, class: `job${Number(one.job) % COLOURS}` }, group);
    if (x(end) - x(one.began) > NAMED) make("text", { x: x(one.began) + 4, y: one.slot * LANE + 13 }, group).textContent = one.job;
  }
  return place.replaceChildren(svg, element("p", { textContent: label }));
}
