// A text cut into words, tokens or sentences, each on the colour of its score; made to be clicked and selected.

import { chooseLevel } from "./colours.js";
import { isWithin } from "./difference.js";
import { fill, make } from "./dom.js";
import { formatScore } from "./wording.js";

/** The text between a unit and the one before it. Offsets count characters as Python does: whole code points. */
export function readGap(letters, previous, unit) {
  if (unit.before !== undefined) return unit.before;
  if (unit.start === null) return previous === null ? "" : " ";
  const from = previous?.end ?? 0;
  const gap = letters.slice(from, Math.max(unit.start, from)).join("");
  return gap || (previous && previous.start === null ? " " : "");
}

/** What a unit shows: its text, or a sign for a piece that is only a line break or a space. */
export function nameUnit({ text, start }) {
  if (start === null && /^[ĊĠĉ\s]*$/u.test(text)) return text.includes("Ċ") || text.includes("\n") ? "↵" : "␣";
  return text || "·";
}

/**
 * press(unit) is a click; select([first, last]) a drag. `verb` names what a click does, for a screen reader:
 * "strike out". Without press, the words are only shown.
 */
export function makeWordsView({ label, verb = "", press = null, select = null }) {
  const element = make("div", { class: "text words", dir: "auto", role: "group", "aria-label": label });
  let shown = null, marks = [], anchor = 0, isDragging = false, focused = 0;

  /** units, scores, limits, signed; pressed: indices; selected: [first, last] or null; changed: character ranges; names: of a pair. */
  function show(state) {
    shown = { pressed: new Set(), selected: null, changed: [], names: null, ...state };
    const letters = [...(shown.text ?? "")];
    const nodes = [];
    marks = [];
    let previous = null, segment = null;
    shown.units.forEach((unit, i) => {
      if (shown.names && unit.segment !== null && unit.segment !== undefined && unit.segment !== segment) {
        segment = unit.segment;
        nodes.push(make("span", { class: "segment" }, shown.names[segment] ?? ""));
      } else nodes.push(readGap(letters, previous, unit));
      marks.push(makeMark(unit, i));
      nodes.push(marks[i]);
      if (unit.start !== null) previous = unit;
      else previous = { start: null, end: previous?.end ?? 0 };
    });
    focused = Math.min(focused, Math.max(marks.length - 1, 0));
    fill(element, nodes, shown.tail ?? "");
    if (press && marks.length) marks[focused].tabIndex = 0;
  }

  function makeMark(unit, i) {
    const score = shown.scores?.[i] ?? 0;
    const isPressed = shown.pressed.has(i), isChanged = unit.start !== null && isWithin(shown.changed, unit.start, unit.end);
    const isSelected = shown.selected !== null && i >= shown.selected[0] && i <= shown.selected[1];
    const classes = [chooseLevel(score, shown.limits, shown.signed), unit.special && "special", nameUnit(unit) !== unit.text && "blank", isPressed && "struck", isChanged && "changed", isSelected && "selected"];
    const attributes = { class: classes.filter(Boolean).join(" "), title: `${formatScore(score, shown.signed)}${isChanged ? ", changed" : ""}`, "data-key": `unit-${i}` };
    if (press) Object.assign(attributes, { role: "button", tabindex: -1, "aria-pressed": String(isPressed), "aria-label": `${unit.text}, ${formatScore(score, shown.signed)}, ${verb}` });
    return make("mark", attributes, nameUnit(unit));
  }

  const findIndex = (node) => marks.indexOf(node.closest?.("mark"));

  function focus(i) {
    if (marks[focused]) marks[focused].tabIndex = -1;
    focused = i;
    marks[i].tabIndex = 0;
    marks[i].focus();
  }

  function mark(range) {
    marks.forEach((each, i) => each.classList.toggle("selected", range !== null && i >= range[0] && i <= range[1]));
  }

  const between = (i, j) => [Math.min(i, j), Math.max(i, j)];

  if (press) {
    element.addEventListener("pointerdown", (event) => {
      const i = findIndex(event.target);
      if (i < 0 || event.button !== 0) return;
      event.preventDefault();
      if (!event.shiftKey) anchor = i;
      isDragging = true;
      focus(i);
    });
    element.addEventListener("pointermove", (event) => {
      if (!isDragging || !select) return;
      const i = findIndex(document.elementFromPoint(event.clientX, event.clientY) ?? element);
      if (i >= 0 && i !== anchor) mark(between(anchor, i));
    });
    element.addEventListener("pointerup", (event) => {
      const i = findIndex(document.elementFromPoint(event.clientX, event.clientY) ?? element);
      if (!isDragging) return;
      isDragging = false;
      if (i < 0) { mark(shown.selected); return; }
      if (i === anchor && !event.shiftKey) press(i);
      else if (select) select(between(anchor, i));
    });
    element.addEventListener("click", (event) => { if (event.detail === 0 && findIndex(event.target) >= 0) press(findIndex(event.target)); });
    element.addEventListener("keydown", (event) => {
      const at = findIndex(event.target);
      if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1 }[event.key];
      if (to !== undefined) {
        const next = Math.min(Math.max(to, 0), marks.length - 1);
        if (event.shiftKey && select) select(between(anchor, next));
        else anchor = next;
        focus(next);
      } else if (event.key === "Enter" || event.key === " ") press(at);
      else if (event.key === "Escape" && select) select(null);
      else return;
      event.preventDefault();
    });
  }
  window.addEventListener("pointerup", () => { isDragging = false; });

  return { element, show };
}

/** A table of all scores, folded away: hue is never the only carrier. */
export function makeScoreTable(units, scores, signed, noun) {
  const rows = units.map((unit, i) => [unit.text, scores[i]]).sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  return make("details", { class: "scores" }, make("summary", { "data-key": "scores" }, `Scores of all ${units.length} ${noun}s`),
    make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Scores" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, noun), make("th", { scope: "col", class: "number" }, "score"))),
      make("tbody", {}, rows.map(([text, score]) => make("tr", {}, make("td", {}, text), make("td", { class: "number" }, formatScore(score, signed))))))));
}
