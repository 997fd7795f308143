// Pictures as SVG: they follow the page's colours, scale on a phone, and say in words what they show.

import { el, perCent, svg } from "./dom.js";

const WIDTH = 560, HEIGHT = 260, LEFT = 48, BOTTOM = 34, TOP = 10, RIGHT = 12;

/** Lines over two axes. lines: [{name, kind, points: [[x, y]]}]; x and y as {most, least, format, label}. */
export function lines(label, x, y, drawn) {
  const least = x.least ?? 0, spanX = (x.most - least) || 1, low = y.least ?? 0, spanY = (y.most - low) || 1;
  const atX = (value) => LEFT + ((value - least) / spanX) * (WIDTH - LEFT - RIGHT);
  const atY = (value) => HEIGHT - BOTTOM - ((value - low) / spanY) * (HEIGHT - BOTTOM - TOP);
  const parts = [];
  for (let i = 0; i <= 4; i++) {
    const vx = least + (spanX * i) / 4, vy = low + (spanY * i) / 4;
    parts.push(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: atY(vy), y2: atY(vy) }));
    parts.push(svg("text", { x: LEFT - 6, y: atY(vy) + 4, "text-anchor": "end" }, y.format(vy)));
    parts.push(svg("text", { x: atX(vx), y: HEIGHT - BOTTOM + 16, "text-anchor": i === 4 ? "end" : "middle" }, x.format(vx)));
  }
  parts.push(svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, x.label));
  for (const one of drawn) {
    const path = one.points.map(([px, py], i) => `${i ? "L" : "M"}${atX(Math.min(px, x.most)).toFixed(1)} ${atY(py).toFixed(1)}`);
    if (path.length) parts.push(svg("path", { class: one.kind, d: path.join("") }));
    if (one.dots) parts.push(...one.points.map(([px, py]) => svg("circle", { class: "site on", cx: atX(px), cy: atY(py), r: 4 })));
  }
  return svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, parts);
}

/** Latencies of the newest answers, with exits and as the plain model would have answered. */
export function latencyPlot(found) {
  if (!found.samples) return el("p", { class: "soft" }, "No answer yet.");
  const middle = Math.floor(found.quantiles.length / 2), tail = Math.floor(found.quantiles.length * 0.95);
  const most = 1.05 * Math.max(found.releasedMs[tail], found.plainMs[tail]) || 1; // the tail would flatten the rest
  const points = (times) => times.map((ms, i) => [ms, found.quantiles[i]]).filter(([ms]) => ms <= most);
  const [with_, without] = [found.releasedMs[middle], found.plainMs[middle]];
  const words = `Median ${with_.toFixed(2)} ms with exits, ${without.toFixed(2)} ms plain, of ${found.samples} answers`;
  return el("div", {},
    lines(`Latency distribution. ${words}.`, { most, format: (ms) => ms.toFixed(most < 10 ? 1 : 0), label: "milliseconds from arrival to answer" },
      { most: 1, format: (share) => perCent(share, 0) },
      [{ kind: "plain", points: points(found.plainMs) }, { kind: "exits", points: points(found.releasedMs) }]),
    el("p", { class: "key" }, el("b", { class: "e" }, "— with exits"), "  ", el("b", { class: "p" }, "- - plain, by the profile"), ". ", words, "."));
}

/** The network as a line: sites, active ramps, and how much leaves at each. */
export function rampMap(model, catalog) {
  const width = 900, y = 120, left = 40, right = width - 70, size = catalog.batchSizes.length - 1;
  const full = catalog.fullMs[size], at = (ramp) => left + (catalog.reachMs[size][ramp] / full) * (right - left);
  const active = new Map(model.ramps.map((one) => [one.ramp, one]));
  const exits = model.ramps.reduce((sum, one) => sum + (one.exitRate ?? 0), 0);
  const parts = [
    svg("line", { class: "net", x1: left, x2: right, y1: y, y2: y }),
    svg("text", { x: left - 30, y: y + 26 }, "input"),
    svg("text", { x: right - 6, y: y + 26 }, "answer"),
    svg("text", { class: "strong", x: right + 10, y: y + 5 }, perCent(1 - exits, 0)),
  ];
  let last = -100;
  for (const ramp of catalog.layers.keys()) {
    const x = at(ramp), one = active.get(ramp), share = one?.exitRate ?? 0;
    const told = `${catalog.layers[ramp]}: ${one ? `threshold ${one.threshold.toFixed(4)}, ${perCent(share)} leave here` : "off"}`;
    if (share > 0) parts.push(svg("path", { class: "leaves", "stroke-width": 2 + 14 * share, d: `M${x} ${y}q6 -46 34 -62` }));
    parts.push(svg("circle", { class: one ? "site on" : "site", cx: x, cy: y, r: one ? 8 : 5 }, svg("title", {}, told)));
    if (one) {
      parts.push(svg("text", { class: "strong", x: x + 42 + 7 * share, y: y - 60, "text-anchor": "start" }, perCent(share, 0)));
      const row = x - last < 90 ? 62 : 44;
      parts.push(svg("text", { x, y: y + row, "text-anchor": "middle" }, shortened(catalog.layers[ramp])));
      last = x;
    }
  }
  const words = model.ramps.map((one) => `${one.layer} ${perCent(one.exitRate)}`).join(", ") || "no ramp is active";
  return svg("svg", { class: "plot wide", viewBox: `0 0 ${width} 200`, role: "img",
    "aria-label": `Ramp map: ${catalog.layers.length} sites, ${model.ramps.length} active ramps. Leaving at ${words}.` }, parts);
}

function shortened(layer) {
  return layer.length > 14 ? `…${layer.slice(-13)}` : layer;
}
