// The perturbation curve: the probability of the answer as more and more of the input is hidden, or kept.

import { draw, make } from "./dom.js";
import { formatProbability, formatShare } from "./wording.js";

const WIDTH = 320, HEIGHT = 150, LEFT = 42, RIGHT = 8, TOP = 10, BOTTOM = 26;

export function placePoint(share, probability) {
  return [LEFT + share * (WIDTH - LEFT - RIGHT), TOP + (1 - probability) * (HEIGHT - TOP - BOTTOM)];
}

/** An SVG path through the points of a curve; points without a value are left out. */
export function tracePath(shares, probabilities) {
  const points = shares.map((share, i) => [share, probabilities[i]]).filter(([, value]) => Number.isFinite(value));
  return points
    .map(([share, value], i) => `${i ? "L" : "M"}${placePoint(share, value).map((at) => at.toFixed(1)).join(" ")}`)
    .join("");
}

/** The value of a curve between its points. */
export function readCurve(shares, probabilities, share) {
  const right = shares.findIndex((at) => at >= share);
  if (right <= 0) return probabilities[right < 0 ? probabilities.length - 1 : 0];
  const part = (share - shares[right - 1]) / (shares[right] - shares[right - 1]);
  return probabilities[right - 1] * (1 - part) + probabilities[right] * part;
}

/** The curves as shares of 1: probabilities, or scores between their lowest and highest where there are no probabilities. */
export function scaleCurves({ shares, hide_top: hide, show_only_top: keep, score_hide: scoreHide, score_show: scoreKeep }) {
  if (hide && keep && [...hide, ...keep].every((value) => value !== null)) return { shares, hide, keep, what: "probability" };
  const all = [...scoreHide, ...scoreKeep], low = Math.min(...all), high = Math.max(...all);
  const scale = (values) => values.map((value) => (high > low ? (value - low) / (high - low) : 0));
  return { shares, hide: scale(scoreHide), keep: scale(scoreKeep), what: "score, from its lowest to its highest" };
}

/** Both curves, with a mark at the share that the slider shows. `mode` is "hide" or "keep". */
export function drawCurve(curve, { share, mode }) {
  const { shares, hide, keep, what } = scaleCurves(curve);
  const chosen = mode === "keep" ? keep : hide;
  const [x, y] = placePoint(share, readCurve(shares, chosen, share));
  const sentence = `Of the answer, the ${what} when the top ${formatShare(share)} are ${mode === "keep" ? "all that is left" : "hidden"}: `
    + formatProbability(readCurve(shares, chosen, share));
  const axis = [0, 0.5, 1].flatMap((value) => {
    const [, at] = placePoint(0, value);
    return [
      draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }),
      draw("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, `${value * 100} %`),
    ];
  });
  const ticks = [0, 0.5, 1].map((value) => {
    const anchor = { 0: "start", 0.5: "middle", 1: "end" }[value];
    return draw("text", { class: "tick", x: placePoint(value, 0)[0], y: HEIGHT - 8, "text-anchor": anchor }, `${value * 100} %`);
  });
  const nothing = placePoint(1, hide.at(-1))[1];
  const picture = draw("svg", { class: "curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": sentence },
    axis, ticks,
    draw("line", { class: "nothing", x1: LEFT, x2: WIDTH - RIGHT, y1: nothing, y2: nothing }),
    draw("path", { class: `line hide${mode === "hide" ? " chosen" : ""}`, d: tracePath(shares, hide) }),
    draw("path", { class: `line keep${mode === "keep" ? " chosen" : ""}`, d: tracePath(shares, keep) }),
    draw("line", { class: "now", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
    draw("circle", { class: `dot ${mode}`, cx: x, cy: y, r: 4 }));
  return make("figure", { class: "curve-box" }, picture, make("figcaption", { class: "legend" },
    make("span", { class: "key hide" }, "hide the top"), make("span", { class: "key keep" }, "show only the top"), make("span", { class: "key nothing" }, "everything hidden")));
}
