// The same question by several methods, side by side, and where they disagree.

import { describeAgreement } from "./agreement.js";
import { makeLatest } from "./api.js";
import { fill, make, makeButton } from "./dom.js";
import { count } from "./wording.js";

/** ask(methods, options) explains; drawSmall(answer, map) draws one map; choose(method) makes it the one that is shown large. */
export function makeMethodGrid({ order, notice, ask, drawSmall, choose }) {
  const latest = makeLatest();
  const words = make("p", { class: "about", "aria-live": "polite" });
  const cells = make("div", { class: "grid-cells" });
  const actions = make("div", { class: "row" });
  const failures = make("div");
  const element = make("div", { class: "method-grid" }, actions, words, cells, failures);
  let state = { answer: null, method: null, isLoading: false, progress: "" };

  function show(changed) {
    state = { ...state, ...changed };
    const { answer, isLoading } = state;
    fill(actions, makeButton(isLoading ? `Comparing … ${state.progress}` : "Compare six methods", () => load("usual"), { "data-key": "usual", set: { disabled: isLoading } }),
      makeButton("Compare the quick methods", () => load("quick"), { class: "quiet", "data-key": "quick", set: { disabled: isLoading } }),
      makeButton("All methods", () => load("all"), { class: "quiet", "data-key": "all", set: { disabled: isLoading } }));
    fill(words, answer?.agreement?.words ?? (answer ? "" : "Methods answer the same question in different ways. Where they disagree, a map alone decides nothing; agreement is no proof either."));
    fill(cells, answer ? sortMaps(answer.maps, order).map(makeCell) : null);
    fill(failures, answer ? listFailures(answer.failures) : null);
  }

  function makeCell(map) {
    const isChosen = map.method === state.method;
    const button = makeButton(map.method, () => choose(map.method), { class: "name-button", "data-key": `use-${map.method}`, "aria-pressed": String(isChosen) });
    return make("figure", { class: `grid-cell${isChosen ? " chosen" : ""}` }, drawSmall(state.answer, map),
      make("figcaption", {}, button, make("span", { class: "dim" }, describeAgreement(state.answer.agreement, map.method, state.method))));
  }

  async function load(methods) {
    show({ isLoading: true, progress: "" });
    const listen = (name, data) => { if (name === "progress" && data.total) show({ progress: `${data.done} of ${data.total}` }); };
    const answer = await notice.during("", () => latest((signal) => ask(methods, { signal, listen })), () => load(methods));
    show({ isLoading: false, ...(answer ? { answer } : {}) });
  }

  /** For another question. */
  function clear(method) {
    latest.stop();
    show({ answer: null, method, isLoading: false });
  }

  return { element, show, clear };
}

/** The maps in the order of the methods: the default first, then by cost. */
function sortMaps(maps, order) {
  return [...maps].sort((a, b) => order.indexOf(a.method) - order.indexOf(b.method));
}

function listFailures(failures) {
  const names = Object.keys(failures ?? {});
  if (!names.length) return null;
  return make("details", {}, make("summary", {}, `${count(names.length, "method")} not shown`),
    make("dl", {}, names.flatMap((name) => [make("dt", {}, name), make("dd", {}, failures[name])])));
}
