// What takes the place of a part that is hidden: the model's own fill first.

import { make, makeId } from "./dom.js";

/** Nothing where there is no choice. */
export function makeFillChoice(fills, chosen, choose) {
  if (fills.length < 2) return null;
  const id = makeId("fill");
  const select = make("select", { id, "data-key": "fill" }, fills.map((each) => make("option", { value: each.name }, each.title)));
  select.value = chosen;
  select.addEventListener("change", () => choose(select.value));
  return make("div", { class: "field fill-field" }, make("label", { for: id }, "Hide by"), select);
}
