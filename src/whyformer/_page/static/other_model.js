// The same input by a second model, beside the first.

import { fill, make, makeId } from "./dom.js";

/** explain(model) gives what to show of another model, or null; `desk.others()` are the models that take the same. */
export function makeOtherModel(desk, explain) {
  const id = makeId("other-model"), select = make("select", { id, "data-key": "other-model" });
  const shown = make("div", { class: "other-shown", "aria-live": "polite" });
  const element = make("section", { class: "card other-model", hidden: true }, make("h3", {}, "Another model, the same input"),
    make("div", { class: "field" }, make("label", { for: id }, "Second model"), select), shown);
  select.addEventListener("change", ask);

  /** List the models again, and ask the chosen one about the input that is on the page now. */
  function renew() {
    const others = desk.others(), chosen = select.value;
    element.hidden = !others.length;
    fill(select, make("option", { value: "" }, "choose one"), others.map((model) => make("option", { value: model.index }, model.name)));
    select.value = others.some((model) => String(model.index) === chosen) ? chosen : "";
    return ask();
  }

  async function ask() {
    fill(shown, null);
    const wanted = select.value, model = desk.others().find((each) => String(each.index) === wanted);
    const found = model && await explain(model);
    if (found && select.value === wanted) fill(shown, found);
  }

  return { element, renew };
}

/** "Both say positive." or what each of the two says; the models may write the same label in other letters. */
export function compareAnswers([one, mine], [two, theirs]) {
  if (!mine || !theirs) return "";
  const isSame = mine.label.toLowerCase() === theirs.label.toLowerCase();
  return isSame ? `Both say ${mine.label}.` : `They differ: ${one} says ${mine.label}, ${two} says ${theirs.label}.`;
}
