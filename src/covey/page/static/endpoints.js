// Endpoints that are serving: a row for each.
import { make, short } from "./table.js";

const times = (status) => [status, (one) => one.answers[status] ?? 0];
const COLUMNS = [
  ["endpoint", (one) => one.address], ["version", (one) => one.model],
  ["replicas", (one) => `${one.replicas}${one.lost ? ` (${one.lost} lost)` : ""}`],
  ["answers/s", (one) => (one.silent ? "silent" : short(one.rate))],
  ["p50, ms", (one) => short(one.p50_ms)], ["p99, ms", (one) => short(one.p99_ms)], ["batch", (one) => short(one.mean_batch)],
  times("200"), times("429"), times("500"), times("504"),
];
const line = (kind, texts) => make("tr", {}, ...texts.map((text) => make(kind, { textContent: text })));

export function drawEndpoints(place, endpoints) {
  place.hidden = !endpoints || !endpoints.length;
  if (place.hidden) return place.replaceChildren();
  const head = make("thead", {}, line("th", COLUMNS.map(([name]) => name)));
  const rows = endpoints.map((one) => line("td", COLUMNS.map(([, text]) => text(one))));
  return place.replaceChildren(make("table", { ariaLabel: "Endpoints" }, head, make("tbody", {}, ...rows)));
}
