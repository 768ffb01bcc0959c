// The parts of a prompt by what they gave to the answer: a ranking, and the prompt itself with a switch on each part.

import { fill, make, makeButton, makeId } from "./dom.js";
import { cutPrompt, splitAnswer } from "./sources.js";
import { formatShare } from "./wording.js";
import { makeWordsView } from "./words.js";

const RANKED = 5;

export function makeOrigin({ toggle, answerAgain, describeWithout }) {
  const ranking = make("div", { class: "ranking" });
  const blocks = make("div", { class: "blocks" });
  let shown = null;

  function show(state) {
    shown = state;
    showRanking();
    showBlocks();
  }

  function showRanking() {
    const { cited } = shown;
    const ranked = [...cited.sources, ...(cited.apart ?? [])].sort((a, b) => (b.share ?? 0) - (a.share ?? 0)).slice(0, RANKED);
    if (!ranked.length) { fill(ranking, make("p", { class: "about" }, "This prompt has no passages to choose from. The words are coloured by what they gave to the answer.")); return; }
    fill(ranking, (cited.lines ?? []).map((line, n) => make("p", { class: n ? "about" : "verdict-words" }, line)),
      make("ol", { class: "ranked" }, ranked.map(makeRanked)));
  }

  function makeRanked(source) {
    const track = makeTrack(source.share);
    const jump = makeButton(source.name, () => {
      const block = [...blocks.children].find((each) => each.dataset.source === keyOf(source));
      block?.scrollIntoView({ block: "center", behavior: "smooth" });
      block?.focus({ preventScroll: true });
    }, { class: "link", "data-key": `rank-${keyOf(source)}` });
    return make("li", {}, jump, track, make("span", { class: "number" }, source.share === null || source.share === undefined ? "–" : formatShare(source.share)));
  }

  function showBlocks() {
    const { cited, words, without } = shown, units = words.units.word, scale = words.scale.word;
    const { prompt } = splitAnswer(units, cited.regions);
    const parts = [...cited.sources, ...(cited.apart ?? [])];
    const switchable = new Set(cited.sources.map(keyOf));
    const cut = cutPrompt(units, parts, prompt);
    fill(blocks, cut.map(({ source, units: indices }) => {
      const view = makeWordsView({ label: source ? `Words of ${source.name}` : "Words between the parts" });
      view.show({ text: cited.prompt_text, units: indices.map((i, k) => (k ? units[i] : { ...units[i], before: "" })), scores: indices.map((i) => words.scores.word[i]), limits: [scale.low, scale.high], signed: words.signed });
      const isOut = source !== null && switchable.has(keyOf(source)) && without.has(source.index);
      return make("div", { class: `block${source ? "" : " between"}${isOut ? " out" : ""}`, "data-source": source ? keyOf(source) : null, tabindex: source ? -1 : null },
        source && makeHead(source, switchable.has(keyOf(source)), isOut), view.element);
    }), cited.sources.length > 0 && make("div", { class: "row" }, makeButton(without.size ? `Answer again without ${describeWithout()}` : "Answer again without …", answerAgain, { "data-key": "answer-again", class: "primary", set: { disabled: !without.size } }),
      !without.size && make("span", { class: "dim" }, "Switch a part off first.")));
  }

  function makeHead(source, canSwitch, isOut) {
    const id = makeId("use");
    const box = make("input", { type: "checkbox", id, role: "switch", class: "switch", "data-key": `use-${source.index}`, set: { checked: !isOut } });
    box.addEventListener("change", () => toggle(source.index));
    return make("div", { class: "block-head" }, canSwitch ? [box, make("label", { for: id }, source.name)] : make("span", { class: "block-name" }, source.name),
      makeTrack(source.share), make("span", { class: "number" }, source.share === null || source.share === undefined ? "" : formatShare(source.share)));
  }

  return { ranking, blocks, show };
}

const keyOf = (source) => `${source.kind}-${source.index}-${source.name}`;

function makeTrack(share) {
  const fillBar = make("span", { class: share < 0 ? "fill a14" : "fill f14" });
  fillBar.style.setProperty("width", `${Math.min(100 * Math.abs(share ?? 0), 100)}%`);
  return make("span", { class: "track", "aria-hidden": "true" }, fillBar);
}
