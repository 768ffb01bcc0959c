// What takes the place of a part that is hidden: the model's own fill first.

import { makeSelect } from "./dom.js";

/** Nothing where there is no choice. */
export function makeFillChoice(fills, chosen, choose) {
  if (fills.length < 2) return null;
  const field = makeSelect("Hide by", fills.map((each) => [each.name, each.title]), chosen, choose, { "data-key": "fill" });
  field.classList.add("fill-field");
  return field;
}
