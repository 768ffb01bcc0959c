// What the model answers: the likeliest classes, each a choice of what to explain, and how far they moved.

import { announce, fill, make, makeButton, makeId } from "./dom.js";
import { formatChange, formatProbability } from "./wording.js";

const FIRST = 5; // rows before "more"
const MOST_LISTED = 500; // labels offered while typing

/** The list of classes. `choose(target)` and `contrast(versus)` take a label, an index, or null. */
export function makeAnswerBox({ labels, what, choose, contrast }) {
  const rows = make("div", { class: "classes", role: "radiogroup", "aria-label": `What to explain: ${what}` });
  const moved = make("p", { class: "moved" });
  const extra = make("div", { class: "answer-extra" });
  const element = make("div", { class: "answer" }, rows, moved, extra);
  const group = makeId("class");
  let shown = null, isLong = false;

  /** classes: before; after: the probabilities of the same classes now, or null; target and versus: indices. */
  function show(state) {
    shown = state;
    const { classes, after } = state;
    const listed = isLong ? classes : classes.slice(0, Math.max(FIRST, 1 + classes.findIndex((row) => row.index === state.target)));
    fill(rows, listed.map((row, i) => makeRow(row, after?.[i] ?? null, state)));
    fill(moved, describeMove(classes, after, state.target));
    fill(extra, classes.length > listed.length || isLong ? makeMore(classes.length) : null, makeOther(), makeContrast());
  }

  function makeRow(row, after, { target }) {
    const now = after ?? row, isAfter = after !== null;
    const input = make("input", {
      type: "radio", name: group, value: row.index, "data-key": `class-${row.index}`,
      set: { checked: row.index === target }, on: { change: () => choose(row.index) },
    });
    const bar = make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "fill" }), make("span", { class: "was" }));
    bar.firstChild.style.setProperty("width", `${100 * (now.probability ?? 0)}%`);
    bar.lastChild.style.setProperty("left", `${100 * (row.probability ?? 0)}%`);
    bar.lastChild.hidden = !isAfter;
    const value = row.probability === null ? `output ${now.score?.toPrecision(3) ?? "–"}` : formatProbability(now.probability);
    return make("label", { class: "class-row" }, input, make("span", { class: "class-name" }, row.label || `class ${row.index}`), bar,
      make("span", { class: "change" }, isAfter ? formatChange(after.probability, row.probability) : ""),
      make("span", { class: "number" }, value));
  }

  const makeMore = (count) => makeButton(isLong ? "Fewer" : `All ${count} that are listed`, () => {
    isLong = !isLong;
    show(shown);
  }, { class: "quiet", "data-key": "more" });

  function makeOther() {
    if (!labels || labels.length <= FIRST) return null;
    const [id, list] = [makeId("other"), makeId("labels")];
    const input = make("input", { id, list, class: "other", placeholder: "another class", autocomplete: "off", "data-key": "other" });
    input.addEventListener("change", () => input.value.trim() && choose(input.value.trim()));
    return make("div", { class: "field" }, make("label", { for: id }, "Explain"), input,
      make("datalist", { id: list }, labels.slice(0, MOST_LISTED).map((label) => make("option", { value: label }))));
  }

  function makeContrast() {
    const others = shown.classes.filter((row) => row.index !== shown.target);
    if (!others.length) return null;
    const id = makeId("versus");
    const select = make("select", { id, "data-key": "versus" }, make("option", { value: "" }, "everything else"),
      others.map((row) => make("option", { value: row.index }, row.label || `class ${row.index}`)));
    select.value = shown.versus ?? "";
    select.addEventListener("change", () => contrast(others.find((row) => String(row.index) === select.value)?.index ?? null));
    return make("div", { class: "field" }, make("label", { for: id }, "rather than"), select);
  }

  return { element, show };
}

/** "Bengal: 80.6 % → 12.0 %; the answer is now Siamese." */
export function describeMove(classes, after, target) {
  if (!after || !classes.length) return "";
  const at = Math.max(classes.findIndex((row) => row.index === target), 0);
  const [before, now] = [classes[at], after[at]];
  if (before.probability === null) return "";
  const best = after.reduce((most, row) => (row.probability > most.probability ? row : most));
  const flip = best.index !== classes[0].index ? ` The answer is now ${best.label}.` : "";
  const words = `${before.label}: ${formatProbability(before.probability)} → ${formatProbability(now.probability)}.${flip}`;
  return words;
}

export function announceMove(classes, after, target) {
  announce(describeMove(classes, after, target));
}
