// The colour bar between its two limits, as show/report.py makes it.

import { make } from "./dom.js";
import { formatScore } from "./wording.js";

export function makeLegend([low, high], signed, { ofImage = false } = {}) {
  const [from, to] = [low, high].map((limit) => formatScore(limit, signed));
  return make("div", { class: "legend" }, make("span", {}, signed ? `${from} against` : from),
    make("span", { class: `bar bar-${signed ? "s" : "u"}${ofImage ? " of-image" : ""}`, "aria-hidden": "true" }),
    make("span", {}, signed ? `${to} for` : to));
}
