// Small helpers: elements without innerHTML, so that nothing a model is called can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A share as a percentage; a dash where it is not known. */
export function perCent(share, digits = 1) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}\u00a0%`;
}

/** JSON from the API. Throws an Error whose message is for people. */
export async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(typeof said.detail === "string" ? said.detail : `the controller answers ${answer.status}`);
  return said;
}

/** A table with a caption; cells are strings or elements, the first of a row is its header. */
export function table(caption, columns, rows, kind = "cards") {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: kind },
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((one) => el("th", { scope: "col" }, one)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) =>
        el(i ? "td" : "th", { "data-of": columns[i], scope: i ? null : "row" }, cell ?? "")))))));
}

/** How much of the accuracy budget is used. */
export function lossGauge(last, budget) {
  if (!last) return el("span", { class: "soft" }, "not known yet");
  const { loss, lossUpper } = last;
  const state = loss > budget ? "bad" : lossUpper > budget ? "warn" : "good";
  return el("span", {},
    el("meter", { min: 0, max: 2 * budget, high: budget, optimum: 0, value: Math.min(loss, 2 * budget),
      "aria-label": `loss ${perCent(loss, 2)} of a budget of ${perCent(budget, 2)}` }), " ",
    el("span", { class: state }, `${perCent(loss, 2)} of ${perCent(budget, 2)}`));
}

/** In words, whether a model does what it should. */
export function health(model) {
  if (!model.ready) return el("span", { class: "bad" }, `not ready: ${model.reason}`);
  if (model.guarded) return el("span", { class: "bad" }, `guard closed the exits on ${model.guarded} of ${model.delivery.workers}`);
  if (!model.delivery.workers) return el("span", { class: "warn" }, "no live worker");
  if (model.paused) {
    const since = model.pausedSince ? ` since ${localTime(model.pausedSince)}` : "";
    return el("span", { class: "warn" }, `paused${since}${model.pausedBy ? `, by ${model.pausedBy}` : ""}`);
  }
  return el("span", { class: "good" }, "adapts");
}

/** A moment in the time of whoever looks, to the second. */
export function localTime(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return text; // of a plan that somebody wrote by hand
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19).replace("T", " ");
}
