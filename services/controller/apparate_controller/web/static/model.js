// One model: ramp map, latencies, what-if, decisions, workers.

import { ask, el, health, localTime, lossGauge, perCent, table } from "./dom.js";
import { latencyPlot, lines, rampMap } from "./plots.js";

const SHOWN = 30; // decisions
const REPLAY_AGAIN_MS = 30_000;
const OVERHEADS = [0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2];

/** The page of one model: what stays, and `update`, which asks again. */
export function modelPage(namespace, name) {
  const base = `v1/models/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const part = (id, title) => {
    const body = el("div", {});
    return [el("section", { "aria-labelledby": id }, el("h2", { id }, title), body), body];
  };
  const facts = el("dl", { class: "facts" });
  const [map, mapBody] = part("map", "Where answers leave");
  const [times, timesBody] = part("times", "Latency");
  const [whatIf, whatIfBody] = part("what-if", "What if the budget were another?");
  const [past, pastBody] = part("past", "Decisions");
  const [works, worksBody] = part("workers", "Workers");
  const page = [el("h1", {}, `${namespace}/${name}`), facts, map, el("div", { class: "columns" }, times, whatIf), past, works];
  let catalog = null, sliders = false, replayed = { plans: [] }, replayedAt = 0, replayedFor = -1;

  async function update() {
    const [model, latencies] = await Promise.all([
      ask(base).catch((error) => {
        facts.replaceChildren(el("p", { class: "bad" }, error instanceof TypeError ? "The controller does not answer." : error.message));
        throw error;
      }),
      ask(`${base}/latencies`).catch(() => ({ samples: 0 })),
    ]);
    if (!catalog || catalog.digest !== model.catalog) catalog = model.catalog ? await ask(`${base}/catalog`) : null;
    facts.replaceChildren(...factsOf(model));
    mapBody.replaceChildren(...(catalog ? [el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Ramp map" }, rampMap(model, catalog)), rampTable(model)] : [el("p", { class: "soft" }, "Not prepared yet.")]));
    timesBody.replaceChildren(latencyPlot(latencies));
    if (replayedFor !== model.plan.revision || Date.now() - replayedAt > REPLAY_AGAIN_MS) { // some ms of the controller
      [replayedFor, replayedAt] = [model.plan.revision, Date.now()];
      replayed = await ask(`${base}/plans/replayed`).catch(() => ({ plans: [] }));
    }
    pastBody.replaceChildren(decisions(model, replayed.plans));
    worksBody.replaceChildren(workers(model));
    if (!sliders && catalog) {
      sliders = true;
      whatIfBody.replaceChildren(...whatIfForm(base, model.budget));
    }
  }
  return { title: `${namespace}/${name}`, page, update };
}

function factsOf(model) {
  const { last, delivery, plan, window: filled } = model;
  const fact = (name, value, note = "") => el("div", {}, el("dt", {}, name), el("dd", {}, value, el("small", {}, note)));
  return [
    fact("Time saved", perCent(last?.saving), "of a plain pass, on average"),
    fact("Loss of budget", lossGauge(last, model.budget.accuracyLoss), last ? `at most ${perCent(last.lossUpper, 2)}, on ${last.samples} records` : ""),
    fact("Leave early", perCent(last?.exitRate), "of all answers"),
    fact("Plan", `revision ${plan.revision}`, `on ${delivery.updatedWorkers} of ${delivery.workers} workers`),
    fact("Window", String(filled.records ?? 0), `of ${filled.size ?? 0} records`),
    fact("State", health(model)),
  ];
}

function rampTable(model) {
  const rows = model.ramps.map((one) => [one.layer, one.threshold.toFixed(4), perCent(one.exitRate), perCent(one.agreement, 2),
    one.savedMs === undefined || one.savedMs === null ? "–" : `${one.savedMs.toFixed(2)} ms`]);
  return el("details", {}, el("summary", {}, `${rows.length} active ramps as a table`),
    table("Active ramps", ["layer", "threshold", "leave here", "of them right", "saved by each"], rows));
}

function decisions(model, replayed) {
  const now = new Map(replayed.map((one) => [one.revision, `${perCent(one.loss, 2)} / ${perCent(one.saving)}`]));
  const rows = model.decisions.slice(0, SHOWN).map((one) => [localTime(one.at),
    one.reason + (one.times > 1 ? ` ×${one.times}` : ""), one.revision === null ? "" : String(one.revision),
    one.samples ? perCent(one.loss, 2) : "", one.samples ? perCent(one.saving) : "", now.get(one.revision) ?? "", one.message]);
  return table("Newest first; a decision without a new plan keeps the one in force. Loss and saving are of the window then; the next column is what the new plan would lose and save on today's window",
    ["time", "reason", "new plan", "loss", "saving", "today", "why"], rows);
}

function workers(model) {
  const rows = model.workers.map((one) => [one.name, String(one.revision), one.guarded ? el("span", { class: "bad" }, "closed the exits") : "watches",
    String(one.inFlight), String(one.served), one.refused]);
  return table("Live workers, by their heartbeats", ["worker", "runs plan", "guard", "in flight", "served", "refuses"], rows);
}

function whatIfForm(base, budget) {
  const told = el("div", { "aria-live": "polite" });
  const loss = el("input", { type: "range", min: -3, max: -1, step: 0.05, value: Math.log10(budget.accuracyLoss), id: "loss" });
  const shown = el("output", { for: "loss" });
  const choices = [...new Set([...OVERHEADS, budget.rampOverhead])].sort((a, b) => a - b);
  const overhead = el("input", { type: "range", min: 0, max: choices.length - 1, step: 1, value: choices.indexOf(budget.rampOverhead), id: "overhead" });
  const shownToo = el("output", { for: "overhead" });
  let timer = 0, asked = 0;
  const read = () => [10 ** Number(loss.value), choices[Number(overhead.value)]];
  const changed = () => {
    const [wanted, cost] = read();
    shown.textContent = perCent(wanted, 2);
    shownToo.textContent = perCent(cost);
    clearTimeout(timer);
    timer = setTimeout(() => answer(wanted, cost, ++asked), 250);
  };
  const answer = async (wanted, cost, turn) => {
    const budgets = [0.1, 0.05, 0.02, 0.01, 0.005, 0.0025, 0.001].filter((one) => Math.abs(one - wanted) > 1e-6).concat(wanted).sort((a, b) => a - b);
    const query = budgets.map((one) => `accuracyLoss=${one}`).join("&") + (cost === budget.rampOverhead ? "" : `&rampOverhead=${cost}`);
    try {
      const found = await ask(`${base}/what-if?${query}`);
      if (turn === asked) told.replaceChildren(...frontier(found, wanted));
    } catch (error) {
      if (turn === asked) told.replaceChildren(el("p", { class: "bad" }, error.message));
    }
  };
  loss.addEventListener("input", changed);
  overhead.addEventListener("input", changed);
  changed();
  return [el("div", { class: "sliders" },
    el("label", { for: "loss" }, "Accuracy loss: ", shown), loss,
    el("label", { for: "overhead" }, "Ramp overhead: ", shownToo), overhead), told];
}

function frontier(found, wanted) {
  if (!found.answers.length) return [el("p", { class: "soft" }, found.problem)];
  const one = found.answers.reduce((best, next) => (Math.abs(next.accuracyLoss - wanted) < Math.abs(best.accuracyLoss - wanted) ? next : best));
  const words = one.certified
    ? `Saves ${perCent(one.saving)} (now ${perCent(found.saving)}), loses at most ${perCent(one.lossUpper, 2)}, ${perCent(one.exitRate)} leave early, ${one.ramps.length} ramps.`
    : "Too few records to certify anything: every ramp would stay closed.";
  const most = Math.max(0.05, ...found.answers.map((each) => each.saving));
  const points = found.answers.map((each) => [Math.log10(each.accuracyLoss), Math.max(each.saving, 0)]);
  return [el("p", {}, words),
    lines(`Saving by accuracy budget. ${words}`, { least: -3, most: -1, format: (p) => perCent(10 ** p), label: "accuracy budget" },
      { most, format: (share) => perCent(share, 0) },
      [{ kind: "exits", points }, { kind: "exits", dots: true, points: [[Math.log10(one.accuracyLoss), Math.max(one.saving, 0)]] }])];
}
