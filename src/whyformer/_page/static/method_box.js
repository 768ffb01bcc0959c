// Which method explains: the default first, with the reason, the others by cost; its cautions as small signs.

import { fill, make, makeId } from "./dom.js";
import { count, joinNames } from "./wording.js";

export function makeMethodBox({ model, choose, check }) {
  const id = makeId("method");
  const select = make("select", { id, "data-key": "method" }, groupMethods(model.methods));
  select.addEventListener("change", () => choose(select.value));
  const about = make("p", { class: "about" });
  const signs = make("div", { class: "signs" });
  const hidden = make("div", { class: "about", "data-key": "hidden-answers" });
  const element = make("div", { class: "method" }, make("div", { class: "field" }, make("label", { for: id }, "Method"), select), about, hidden, signs, makeModelNotes(model));

  function show({ method, map, checked, isChecking }) {
    select.value = method;
    const chosen = model.methods.find((each) => each.name === method);
    fill(about, chosen ? describeMethod(chosen, model.default_why) : "");
    fill(hidden, map?.check?.map((line, i) => make("p", {}, i ? make("strong", {}, line) : `The answer with parts hidden: ${line}`)), map?.sum && make("p", { class: "dim" }, map.sum));
    fill(signs, map ? listSigns(map).map(makeSign) : null, map && !checked && makeCheck(isChecking));
  }

  function makeCheck(isChecking) {
    const button = make("button", { type: "button", class: "quiet", "data-key": "check", set: { disabled: isChecking } },
      isChecking ? "Checking …" : "Check sums and rounding");
    button.addEventListener("click", check);
    return button;
  }

  return { element, show };
}

function groupMethods(methods) {
  const groups = { "Default": [], "Quick": [], "Slower": [], "Not for this model": [] };
  for (const method of methods) {
    const isOut = method.available === false; // null: not tried yet
    const group = isOut ? "Not for this model" : method.is_default ? "Default" : method.quick ? "Quick" : "Slower";
    const text = !isOut ? `${method.name} · ${method.cost}` : `${method.name} · ${method.why_not}`;
    groups[group].push(make("option", { value: method.name, set: { disabled: isOut } }, text));
  }
  return Object.entries(groups).filter(([, options]) => options.length)
    .map(([label, options]) => make("optgroup", { label }, options));
}

/** Why this method, what it computes and for what it costs. */
export function describeMethod(method, why) {
  const reason = method.is_default && why ? ` ${endSentence(why)}` : "";
  const kind = method.class_specific ? "" : " The scores are the same for every class.";
  return `${endSentence(method.summary)}${reason}${kind} Costs ${method.cost}.`;
}

function endSentence(words) {
  return /[.!?]$/.test(words) ? words : `${words}.`;
}

/** The cautions of a map: [{ level, label, words }]. */
export function listSigns({ cautions = {}, notes = [], cost }) {
  const signs = [];
  for (const [name, label] of [["conservation", "sums"], ["rounding", "rounding"]]) {
    const { [name]: words, [`${name}_caution`]: caution } = cautions;
    if (caution) signs.push({ level: "bad", label, words: caution });
    else if (words) signs.push({ level: "good", label, words });
  }
  if (notes.length) signs.push({ level: "plain", label: count(notes.length, "note"), words: notes.join("\n") });
  if (cost && Object.keys(cost).length) signs.push({ level: "plain", label: "cost", words: describeCost(cost) });
  return signs;
}

const PASSES = { forward: "forward pass", backward: "backward pass", relevance: "relevance pass" };

/** "This map took 1 forward pass and 1 relevance pass." */
export function describeCost(cost) {
  return `This map took ${joinNames(Object.entries(cost).map(([name, passes]) => count(passes, PASSES[name] ?? name)))}.`;
}

/** What the library noticed about the model, on demand. */
export function makeModelNotes(model) {
  return model.notes?.length ? makeSign({ level: "plain", label: "about this model", words: model.notes.join("\n") }) : null;
}

const MARKS = { good: "✓", bad: "!", plain: "i" };

export function makeSign({ level, label, words }) {
  return make("details", { class: `sign ${level}` },
    make("summary", { "data-key": `sign-${label}` }, make("span", { class: "sign-mark", "aria-hidden": "true" }, MARKS[level]), label),
    make("p", {}, words));
}
