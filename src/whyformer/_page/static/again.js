// An answer that was written again, beside the one before.

import { compareTexts, splitWords } from "./difference.js";
import { make } from "./dom.js";
import { toPoints } from "./text_stage.js";
import { shorten } from "./wording.js";
import { makeWordsView } from "./words.js";

/** names: what was left out. */
export function drawAgain(names, before, text) {
  const changed = compareTexts(before, text.trim()), isSame = text.trim() === before.trim();
  const words = makeWordsView({ label: `The answer without ${names}` });
  words.show({ text: text.trim(), units: cutWords(text.trim()), limits: [0, 0], signed: true, changed: toPoints(text.trim(), changed.after) });
  return [make("h4", {}, names ? `Without ${names}` : "Once more"), words.element, make("p", { class: "dim" }, text && (isSame ? "The same answer." : describeDifference(before, changed)))];
}

/** "New words are underlined. Gone: tea." */
function describeDifference(before, changed) {
  const gone = changed.before.map(([start, end]) => before.slice(start, end)).join(" ");
  return [changed.after.length && "New words are underlined.", gone && `Gone: ${shorten(gone, 80)}`].filter(Boolean).join(" ");
}

/** The words of a text that has no scores. */
function cutWords(text) {
  const ranges = toPoints(text, splitWords(text).map(({ start, end }) => [start, end]));
  return splitWords(text).map((word, i) => ({ text: word.text, start: ranges[i][0], end: ranges[i][1], tokens: [], special: false }));
}
