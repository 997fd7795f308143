// The page: which part the address asks for, and asking again while somebody looks.

import { ask, el, health, lossGauge, perCent, table } from "./dom.js";
import { modelPage } from "./model.js";

const EVERY_MS = 2000;
const main = document.getElementById("main"), state = document.getElementById("state");
let shown = null, timer = 0;

function listPage() {
  const body = el("div", {});
  async function update() {
    const { models } = await ask("v1/models");
    const rows = models.map((one) => [
      el("a", { href: `#/${encodeURIComponent(one.namespace)}/${encodeURIComponent(one.name)}` }, `${one.namespace}/${one.name}`),
      health(one), perCent(one.last?.saving), lossGauge(one.last, one.budget.accuracyLoss), perCent(one.last?.exitRate),
      `${one.delivery.revision} on ${one.delivery.updatedWorkers} of ${one.delivery.workers}`, String(one.records)]);
    const focused = body.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    body.replaceChildren(models.length
      ? table("Every model that this controller adapts", ["model", "state", "time saved", "loss of budget", "leave early", "plan, workers", "records"], rows)
      : el("p", {}, "There are no models yet. On Kubernetes: kubectl apply -f model.yaml; here: apparate serve -f model.yaml."));
    if (focused) body.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
  return { title: "Models", page: [el("h1", {}, "Models"), body], update };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a name that nothing has: the page says so
  }
}

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  shown = parts.length === 2 ? modelPage(...parts) : listPage();
  document.title = `${shown.title} · Apparate`;
  main.replaceChildren(...shown.page);
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  const asked = shown;
  try {
    if (!document.hidden) {
      await asked.update();
      if (asked === shown && state.dataset.bad !== "no") {
        state.dataset.bad = "no";
        state.className = "";
        state.textContent = "live";
      }
    }
  } catch (error) {
    if (asked === shown) {
      state.dataset.bad = "yes";
      state.className = "bad";
      state.textContent = error instanceof TypeError ? "the controller does not answer" : error.message;
    }
  }
  if (asked === shown) timer = setTimeout(refresh, EVERY_MS);
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  route();
  main.focus();
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
route();
