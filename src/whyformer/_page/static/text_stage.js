// A text or a pair of texts: written at the top, coloured below, and a copy to edit beside it.

import { compareTexts } from "./difference.js";
import { fill, make, makeButton, makeChoice, makeId } from "./dom.js";
import { makeFillChoice } from "./fill_choice.js";
import { makeLegend } from "./legend.js";
import { makeScoreTable, makeWordsView } from "./words.js";
import { capitalise, count, formatScore } from "./wording.js";

const UNITS = [["token", "Tokens"], ["word", "Words"], ["sentence", "Sentences"]];

/**
 * explain(input): the text as it is now. hide(hidden): struck tokens, or null. target(words): what to explain instead.
 * copy: { explain(input) -> answer with one map, close() } for a copy beside the original.
 */
export function makeTextStage(desk, { explain, hide, target, copy, change }, settings) {
  const { model } = desk, isPair = model.kind === "pair";
  const isTagger = model.task === "token class", canPick = isTagger || model.task === "answer span";
  const usual = isTagger ? "token" : "word"; // a word may end in a full stop, which has a tag of its own
  let unit = ["token", "word", "sentence"].includes(settings.unit) ? settings.unit : usual;
  let shown = null, struck = new Set(), selected = null, isAsking = false; // struck: tokens; isAsking: a click picks what to explain
  const fills = model.fills ?? [];
  let fillName = fills.some((each) => each.name === settings.fill) ? settings.fill : fills[0]?.name;

  const editor = makeEditor(desk, { isPair, submit: explain });
  const view = makeWordsView({ label: "The text, coloured by score", verb: "strike out or bring back", press, select });
  const legend = make("div", { class: "legend-place" });
  const tools = make("div", { class: "row tools-row" });
  const selection = make("div", { class: "selection row", "aria-live": "polite" });
  const table = make("div");
  const original = make("div", { class: "original" }, view.element, legend);
  const beside = makeCopy(desk, { isPair, copy, getUnit: () => unit, compare: showOriginal });
  const sides = make("div", { class: "sides" }, original, beside.element);
  const work = make("div", { class: "text-work", hidden: true }, tools, sides, selection, table);
  const element = make("div", { class: "text-stage" }, editor.element, work);

  function show(answer, map) {
    shown = { answer, map };
    work.hidden = false;
    showTools();
    showOriginal();
  }

  function showOriginal() {
    if (!shown) return;
    const { answer, map } = shown, units = answer.units[unit], scale = map.scale[unit];
    const pressed = new Set(units.flatMap((each, i) => (each.tokens.length && each.tokens.every((token) => struck.has(token)) ? [i] : [])));
    const changed = beside.isOpen ? compareTexts(answer.text ?? "", beside.text ?? answer.text ?? "").before : [];
    view.show({ text: answer.text, units, scores: map.scores[unit], limits: [scale.low, scale.high], signed: map.signed, pressed, selected, changed: toPoints(answer.text ?? "", changed), names: isPair ? namePair(model) : null });
    fill(legend, makeLegend([scale.low, scale.high], map.signed));
    fill(table, makeScoreTable(units, map.scores[unit], map.signed, unit));
    showSelection();
  }

  function showTools() {
    fill(tools, makeChoice("Cut into", UNITS, unit, (chosen) => {
      unit = chosen;
      selected = null;
      change({ unit: unit === usual ? null : unit });
      showOriginal();
      beside.redraw();
    }),
    canPick && makeChoice("A click", [["strike", "Strikes out"], ["ask", isTagger ? "Asks for its tag" : "Asks for this span"]], isAsking ? "ask" : "strike", (mode) => { isAsking = mode === "ask"; showSelection(); }),
    makeFillChoice(fills, fillName, (chosen) => {
      fillName = chosen;
      change({ fill: fillName === fills[0].name ? null : fillName });
      if (struck.size) tellHidden();
    }),
    makeButton("Bring all words back", () => { struck = new Set(); tellHidden(); }, { "data-key": "restore" }),
    makeButton(beside.isOpen ? "Close the copy" : "Edit a copy beside it", toggleCopy, { "data-key": "copy", "aria-expanded": String(beside.isOpen) }));
  }

  function toggleCopy() {
    if (beside.isOpen) beside.close();
    else {
      struck = new Set();
      beside.open(editor.read());
    }
    sides.classList.toggle("two", beside.isOpen);
    showTools();
    showOriginal();
  }

  // --- striking out and selecting ---

  const listTokens = ([first, last]) => shown.answer.units[unit].slice(first, last + 1).flatMap((each) => each.tokens);

  function press(i) {
    if (isAsking) return pick([i, i]);
    const tokens = listTokens([i, i]), isStruck = tokens.every((token) => struck.has(token));
    for (const token of tokens) if (isStruck) struck.delete(token); else struck.add(token);
    return tellHidden();
  }

  function pick(range) {
    const tokens = listTokens(range);
    if (tokens.length) target(`${isTagger ? "entity" : "answer"}:${Math.min(...tokens)}-${Math.max(...tokens)}`);
  }

  function select(range) {
    selected = range;
    showOriginal();
  }

  function showSelection() {
    if (selected === null) { fill(selection, make("span", { class: "dim hint" }, isAsking ? "Click a word to ask why it is tagged as it is. Drag over words to take several at once." : "Click a word to strike it out and watch the answer move. Drag over words to take several at once.")); return; }
    const [first, last] = selected, { map } = shown;
    const sum = map.scores[unit].slice(first, last + 1).reduce((total, score) => total + score, 0);
    fill(selection, make("span", {}, `${count(last - first + 1, unit)} selected: ${formatScore(sum, map.signed)} together`),
      makeButton("Strike out", () => { for (const token of listTokens(selected)) struck.add(token); selected = null; tellHidden(); }, { "data-key": "strike-span" }),
      canPick && makeButton(isTagger ? "Explain its tag" : "Explain this span", () => pick(selected), { "data-key": "pick" }),
      makeButton("Let go", () => select(null), { class: "quiet", "data-key": "let-go" }));
  }

  function tellHidden() {
    showOriginal();
    hide(struck.size ? { ...(fillName ? { fill: fillName } : {}), tokens: [...struck].sort((a, b) => a - b) } : null);
  }

  function hideUnits(tokens) {
    struck = new Set(tokens ?? []);
    showOriginal();
    return tokens && { ...(fillName ? { fill: fillName } : {}), tokens };
  }

  function clear() {
    struck = new Set();
    selected = null;
    if (beside.isOpen) toggleCopy();
  }

  function drawSmall(answer, map) {
    const small = makeWordsView({ label: `The text, coloured by ${map.method}` });
    const scale = map.scale[unit];
    small.show({ text: answer.text, units: answer.units[unit], scores: map.scores[unit], limits: [scale.low, scale.high], signed: map.signed, names: isPair ? namePair(model) : null });
    return small.element;
  }

  return { element, unit: "token", show, hideUnits, clear, drawSmall, editor };
}

/** Ranges in characters of JavaScript (UTF-16) as ranges in code points. */
export function toPoints(text, ranges) {
  const convert = (at) => [...text.slice(0, at)].length;
  return ranges.map(([start, end]) => [convert(start), convert(end)]);
}

/** What the two texts of a pair are called. */
function namePair(model) {
  return model.task === "answer span" ? ["question", "text"] : ["first text", "second text"];
}

/** Where a text is written, with samples. Ctrl+Enter explains. */
function makeEditor(desk, { isPair, submit }) {
  const isPrompt = desk.model.kind === "language model";
  const [id, secondId] = [makeId("text"), makeId("second")];
  const write = (name) => make("textarea", { id: name, rows: 3, maxlength: desk.limits.characters, spellcheck: "false", dir: "auto", "data-key": name });
  const first = write(id), second = write(secondId);
  const read = () => (isPair ? { text: first.value, second: second.value } : { [isPrompt ? "prompt" : "text"]: first.value });
  const send = () => submit(read());
  const set = (input) => {
    first.value = input.text ?? input.prompt ?? "";
    second.value = input.second ?? "";
  };
  for (const area of [first, second])
    area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(); });
  const samples = (desk.model.samples ?? []).map((sample, i) => !sample.input.messages && makeButton(sample.title, () => { set(sample.input); submit(sample.input, i); }, { class: "quiet", "data-key": `sample-${i}` }));
  const element = make("div", { class: "editor" },
    make("div", { class: isPair ? "pair" : "" },
      make("div", {}, make("label", { for: id }, isPair ? capitalise(namePair(desk.model)[0]) : isPrompt ? "Prompt" : "Text"), first),
      isPair && make("div", {}, make("label", { for: secondId }, capitalise(namePair(desk.model)[1])), second)),
    make("div", { class: "row" }, makeButton(isPrompt ? "Explain the next token" : "Explain", send, { class: "primary", "data-key": "explain" }),
      make("span", { class: "dim wide-only" }, "or Ctrl + Enter"),
      samples.length ? make("span", { class: "samples" }, make("span", { class: "dim" }, "Try this:"), samples) : null));
  return { element, read, set };
}

/** A copy of the text to edit, explained as it is typed. */
function makeCopy(desk, { isPair, copy, getUnit, compare }) {
  const areas = (isPair ? [0, 1] : [0]).map(() => {
    const id = makeId("copy");
    return make("textarea", { id, rows: 3, spellcheck: "false", dir: "auto", "data-key": id, maxlength: desk.limits.characters });
  });
  const view = makeWordsView({ label: "The copy, coloured by score" });
  const legend = make("div", { class: "legend-place" });
  const names = namePair(desk.model);
  const element = make("div", { class: "copy", hidden: true }, areas.map((area, i) => [make("label", { for: area.id }, isPair ? `Edit this copy: ${names[i]}` : "Edit this copy"), area]).flat(), view.element, legend);
  let base = null, shown = null, timer = 0;

  const isPrompt = desk.model.kind === "language model";
  const [area, other] = areas;
  const readInput = () => (isPrompt ? { prompt: area.value } : isPair ? { text: area.value, second: other.value } : { text: area.value });
  for (const each of areas) each.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(send, 250);
    compare();
  });
  async function send() {
    if (element.hidden || areas.some((each) => !each.value.trim())) return;
    const answer = await copy.explain(readInput());
    if (!answer || element.hidden) return;
    shown = answer;
    redraw();
    compare();
  }
  function redraw() {
    if (!shown || element.hidden) return;
    const unit = getUnit(), [map] = shown.maps, scale = map.scale[unit];
    const changed = compareTexts(joinPair(base), shown.text ?? area.value).after;
    view.show({ text: shown.text, units: shown.units[unit], scores: map.scores[unit], limits: [scale.low, scale.high], signed: map.signed, changed: toPoints(shown.text ?? "", changed), names: isPair ? names : null });
    fill(legend, makeLegend([scale.low, scale.high], map.signed));
  }
  const joinPair = (input) => (isPair ? `${input.text}\n${input.second}` : input.text ?? input.prompt);

  return {
    element,
    redraw,
    get isOpen() { return !element.hidden; },
    get text() { return shown?.text ?? null; },
    open(input) {
      base = input;
      area.value = input.text ?? input.prompt;
      if (isPair) other.value = input.second;
      element.hidden = false;
      area.focus();
      send();
    },
    close() {
      element.hidden = true;
      shown = null;
      copy.close();
    },
  };
}
