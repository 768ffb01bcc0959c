// Does the answer really depend on what was marked? A slider that hides the highest scores, beside the curve.

import { drawCurve } from "./curve.js";
import { fill, make, makeButton, makeChoice, makeSlider } from "./dom.js";
import { chooseHidden } from "./hidden_share.js";
import { count, formatShare } from "./wording.js";

export function makeTestBox({ unit, change, load }) {
  const curve = make("div", { class: "curve-place" });
  const words = make("p", { class: "about" });
  const controls = make("div", { class: "test-controls" });
  const nothing = make("p", { class: "nothing-words" });
  const element = make("div", { class: "test" }, controls, curve, nothing, words);
  let state = { curve: null, share: 0, mode: "hide", isLoading: false };

  function show(changed) {
    const rebuild = !controls.childElementCount || "curve" in changed || ("mode" in changed && changed.mode !== state.mode) || "isLoading" in changed;
    state = { ...state, ...changed };
    if (rebuild) fill(controls, makeModes(), makeShare());
    showCurve();
  }

  function showCurve() {
    if (state.curve) {
      fill(curve, drawCurve(state.curve, state));
      const hidden = chooseHidden(state.curve.order, state.share, state.mode).length;
      fill(nothing, state.curve.nothing?.words);
      fill(words, state.share || state.mode === "keep" ? `${count(hidden, unit)} of ${state.curve.order.length} hidden.` : state.curve.words ?? "");
    } else {
      fill(curve, make("div", { class: "curve-empty" }, state.isLoading
        ? make("p", { class: "dim" }, "Measuring the curve …")
        : makeButton("Measure the curve", load, { "data-key": "measure" })));
      fill(words, "");
      fill(nothing, "");
    }
  }

  const makeModes = () => makeChoice("The slider", [["hide", "Hide the top"], ["keep", "Show only the top"]], state.mode,
    (mode) => { show({ mode, share: state.share || 0.1 }); change(state.share, mode); });

  function makeShare() {
    const slider = makeSlider("Share", {
      min: 0, max: 1, step: 0.01, value: state.share, format: formatShare, key: "share",
      change: (share) => { state = { ...state, share }; showCurve(); change(share, state.mode); },
    });
    slider.querySelector("input").disabled = !state.curve;
    return slider;
  }

  return { element, show, get state() { return state; } };
}
