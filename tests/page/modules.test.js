// The pure parts of the page, run by node: test_browser_modules.py copies them beside the modules.
import assert from "node:assert/strict";
import test from "node:test";

import { readAddress, writeAddress } from "./address.js";
import { dab, makeMask, maskPatches, measureMask, stroke, writeMask } from "./brush.js";
import { readCases, toDataUrl, fromDataUrl, writeCases } from "./case_file.js";
import { chooseLevel, findMapLimits, findWordLimits, measureStrength, pickColour } from "./colours.js";
import { placePoint, readCurve, scaleCurves, tracePath } from "./curve.js";
import { compareTexts, isWithin, matchWords } from "./difference.js";
import { makeEventReader } from "./events.js";
import { listSigns } from "./method_box.js";
import { mixMap, sampleScores } from "./map.js";
import { cutPrompt, describeWords, joinSpan, locateUnits, nameWithout, splitAnswer } from "./sources.js";
import { makeItem } from "./runs.js";
import { compareAnswers } from "./other_model.js";
import { chooseHidden } from "./hidden_share.js";
import { nameAgreement } from "./agreement.js";
import { count, formatChange, formatProbability, formatScore, makeVisible, shorten } from "./wording.js";

test("control and invisible characters are spelled out", () => {
  assert.equal(makeVisible("plain – ü 猫"), "plain – ü 猫");
  assert.equal(makeVisible("a\u202eb\u200b\x1b"), "a\\u202eb\\u200b\\x1b");
  assert.equal(makeVisible("two\nlines"), "two\nlines");
  assert.equal(makeVisible("👩‍👩‍👧"), "👩‍👩‍👧");
  assert.equal(makeVisible("\u{e0041}"), "\\U000e0041");
  assert.equal(makeVisible("a\tb\r"), "a\\tb\\r");
});

test("numbers are written as the static pages write them", () => {
  assert.equal(formatScore(0.12345, true), "+0.123");
  assert.equal(formatScore(-2, true), "-2");
  assert.equal(formatScore(-0, true), "+0");
  assert.equal(formatScore(NaN, false), "–");
  assert.equal(formatProbability(0.8064), "80.6 %");
  assert.equal(formatProbability(0.99999), "> 99.9 %");
  assert.equal(formatProbability(1e-6), "< 0.1 %");
  assert.equal(formatProbability(1), "100.0 %");
  assert.equal(formatChange(0.5, 0.8), "−30.0 points");
  assert.equal(formatChange(0.5, 0.5), "no change");
  assert.equal(count(1, "word"), "1 word");
  assert.equal(count(1200, "patch"), "1,200 patches");
  assert.equal(shorten("abcdef", 4), "abc…");
});

test("a word gets the class of its score", () => {
  assert.equal(chooseLevel(0.5, [-1, 1], true), "f10");
  assert.equal(chooseLevel(-2, [-1, 1], true), "a20");
  assert.equal(chooseLevel(0.25, [0, 1], false), "u5");
  assert.equal(chooseLevel(3, [0, 0], true), "f0");
});

test("limits leave special tokens and extreme patches out", () => {
  assert.deepEqual(findWordLimits([{ score: 9, special: true }, { score: -2, special: false }], true), [-2, 2]);
  assert.deepEqual(findWordLimits([], true), [0, 0]);
  const [low, high] = findMapLimits([...Array(200).fill(1), 100], true);
  assert.ok(high < 100 && low === -high);
  assert.deepEqual(findMapLimits([2, 2], false), [2, 2]);
  assert.equal(measureStrength(-0.5, [-1, 1], true), 0.5);
  assert.deepEqual(pickColour([[0], [1], [2]], 0, [-1, 1], true), [1]);
  assert.deepEqual(pickColour([[0], [1], [2]], 5, [0, 1], false), [2]);
});

test("a patch covers exactly its own pixels, and nothing outside the view", () => {
  const grid = { rows: 2, columns: 2, scores: [1, 2, 3, 4] }, whole = { left: 0, top: 0, right: 1, bottom: 1 };
  assert.deepEqual(sampleScores(grid, whole, 4, 2, false), [1, 1, 2, 2, 3, 3, 4, 4]);
  const half = sampleScores(grid, { left: 0.5, top: 0, right: 1, bottom: 1 }, 4, 2, false);
  assert.deepEqual(half, [null, null, 1, 2, null, null, 3, 4]);
  const smooth = sampleScores(grid, whole, 4, 4, true);
  assert.equal(smooth[0], 1);
  assert.equal(smooth[5], 1 * 0.75 * 0.75 + 2 * 0.25 * 0.75 + 3 * 0.75 * 0.25 + 4 * 0.0625);
});

test("a map mixes as the static pages do", () => {
  const pixels = new Uint8ClampedArray([100, 100, 100, 255, 10, 20, 30, 255]);
  mixMap(pixels, [1, null], { table: [[0, 0, 0], [255, 0, 0]], limits: [0, 1], signed: false, strength: 0.85 });
  const grey = 255 - (255 - 100) * 0.82;
  assert.deepEqual([...pixels.slice(0, 3)], [grey * 0.15 + 255 * 0.85, grey * 0.15, grey * 0.15].map(Math.round));
  assert.equal(pixels[4], pixels[5]);
});

test("changed words are found in both texts", () => {
  const { before, after } = compareTexts("a gorgeous witty film", "a dull witty film indeed");
  assert.deepEqual(before, [[2, 10]]);
  assert.deepEqual(after, [[2, 6], [18, 24]]);
  assert.ok(isWithin(before, 4, 5) && !isWithin(before, 10, 12));
  assert.deepEqual(matchWords(["x", "a", "b"], ["a", "y", "b"]), [[1, 0], [2, 2]]);
  assert.deepEqual(compareTexts("", "").before, []);
});

test("an address holds settings only", () => {
  const address = writeAddress({ model: "demo/pets", target: 3, text: "secret", versus: null, method: "" });
  assert.equal(address, "#model=demo%2Fpets&target=3");
  assert.deepEqual(readAddress(`${address}&evil=1`), { model: "demo/pets", target: "3" });
  assert.deepEqual(readAddress(""), {});
});

test("events are read across pieces", () => {
  const push = makeEventReader();
  assert.deepEqual(push("event: job\ndata: {\"jo"), []);
  assert.deepEqual(push("b\": 1}\n\n: ping\n\nevent: result\ndata: [1,\ndata: 2]\n\n"), [{ name: "job", data: { job: 1 } }, { name: "result", data: [1, 2] }]);
});

test("a brush covers what it passes over", () => {
  const mask = makeMask(10);
  assert.ok(dab(mask, 0.5, 0.5, 0.1));
  assert.ok(!dab(mask, 0.5, 0.5, 0.1));
  assert.equal(measureMask(mask), 0.04);
  assert.ok(stroke(mask, [0, 0.05], [1, 0.05], 0.06));
  assert.ok(mask.cells.slice(0, 10).every(Boolean));
  dab(mask, 0.5, 0.5, 2, 0);
  assert.equal(measureMask(mask), 0);
  assert.deepEqual(writeMask(maskPatches([1, 2], 2, 2)), { rows: 2, columns: 2, cells: "0110" });
});

test("the slider hides the top, or all but the top", () => {
  const order = [3, 1, 0, 2];
  assert.deepEqual(chooseHidden(order, 0.5, "hide"), [3, 1]);
  assert.deepEqual(chooseHidden(order, 0.5, "keep"), [0, 2]);
  assert.deepEqual(chooseHidden(order, 0, "keep"), order);
});

test("a curve is read between its points", () => {
  assert.equal(readCurve([0, 0.5, 1], [1, 0.5, 0], 0.25), 0.75);
  assert.equal(readCurve([0, 1], [1, 0], 1), 0);
  assert.match(tracePath([0, 0.5, 1], [1, null, 0]), /^M[\d.]+ [\d.]+L[\d.]+ [\d.]+$/);
  const scored = { shares: [0, 1], hide_top: [null, null], show_only_top: null, score_hide: [4, 2], score_show: [2, 4] };
  assert.deepEqual(scaleCurves(scored).hide, [1, 0]);
  assert.deepEqual(scaleCurves({ ...scored, hide_top: [0.5, 0], show_only_top: [0, 0.5] }).hide, [0.5, 0]);
  assert.ok(placePoint(0, 1)[1] < placePoint(0, 0)[1]);
});

test("parts of an answer are found in its text", () => {
  const located = locateUnits("the tea, the tea", [{ text: "the" }, { text: "tea," }, { text: "the" }, { text: "tea" }]);
  assert.deepEqual(located[3], { start: 13, stop: 16 });
  assert.deepEqual(joinSpan(located, [1, 2]), { start: 4, stop: 12 });
  assert.equal(joinSpan(located, [0, 3]), null);
  assert.deepEqual(locateUnits("🐈 a", [{ text: "🐈" }, { text: "a" }])[1], { start: 2, stop: 3 });
});

test("a prompt is cut by its passages", () => {
  const units = ["one", "two", "rest", "ans"].map((text, i) => ({ text, start: i * 4, end: i * 4 + 3, tokens: [i], special: false }));
  const { answer, prompt } = splitAnswer(units, [{ kind: "answer", start: 3, stop: 4 }]);
  assert.deepEqual([answer, prompt], [[3], [0, 1, 2]]);
  const [first, second] = [{ start: 0, end: 3, index: 0, name: "passage 1" }, { start: 4, end: 7, index: 1, name: "passage 2" }];
  const blocks = cutPrompt(units, [second, first], prompt);
  assert.deepEqual(blocks.map((block) => [block.source?.index ?? null, block.units]), [[0, [0]], [1, [1]], [null, [2]]]);
  const breaks = [units[0], { text: "Ċ", start: null, end: null, tokens: [9], special: false }, units[1]];
  assert.deepEqual(cutPrompt(breaks, [first, second], [0, 1, 2]).map((block) => block.units), [[0], [2]]);
  assert.equal(nameWithout([first, second], new Set([0, 1])), "passage 1 and passage 2");
});

test("an answer without passages still has its words", () => {
  const unit = (text, start, token) => ({ text, start, end: start === null ? null : start + text.length, tokens: [token], special: false });
  const answer = {
    text: "the keys are here", units: { token: [unit("the", 0, 0), unit("keys", 4, 1), unit("are", 9, 2), unit("here", 13, 3)] },
    regions: [{ kind: "answer", start: 2, stop: 4 }], maps: [{ scores: {}, scale: {}, signed: true, method: "x" }], code: "",
  };
  const words = describeWords(answer, "none");
  assert.deepEqual([words.prompt_text, words.answer, words.notes], ["the keys ", "are here", ["none"]]);
});

test("a file of cases is read strictly", () => {
  const item = { name: "<b>", input: { text: "x" }, request: { route: "explain" }, picture: "javascript:alert(1)", evil: 1 };
  const [read] = readCases(writeCases([item]));
  assert.equal(read.name, "<b>");
  assert.equal(read.picture, null);
  assert.ok(!("evil" in read));
  for (const bad of ["nonsense", "[]", "{}", "null", '{"format":"whyformer cases","version":2,"cases":[]}', '{"format":"whyformer cases","version":1,"cases":[1]}'])
    assert.throws(() => readCases(bad), /file/);
  const bytes = Uint8Array.from([0, 255, 7]);
  assert.deepEqual(fromDataUrl(toDataUrl(bytes, "image/png")), bytes);
});

test("cautions are signs with words", () => {
  const fine = listSigns({ cautions: { rounding: "ok", rounding_caution: "", conservation: "sums", conservation_caution: "" }, cost: { forward: 1, relevance: 2 } });
  assert.deepEqual(fine.map((sign) => [sign.level, sign.words]), [["good", "sums"], ["good", "ok"], ["plain", "This map took 1 forward pass and 2 relevance passes."]]);
  const bad = listSigns({ cautions: { rounding: "x", rounding_caution: "rounding decides", conservation: null }, notes: ["a", "b"] });
  assert.deepEqual(bad.map((sign) => [sign.level, sign.label]), [["bad", "rounding"], ["plain", "2 notes"]]);
});

test("agreement has words", () => {
  assert.deepEqual([0.9, 0.5, 0, -0.9].map(nameAgreement), ["agrees", "agrees in part", "hardly agrees", "ranks the other way"]);
});

test("a case of somebody else has texts where the page needs texts", () => {
  const own = { name: "n", title: "Why a?", model: "demo/x", input: { text: "a" }, request: { route: "explain", model: 0 }, choice: { method: "rollout", target: 1, span: { start: 0, stop: 2 } } };
  const read = (changed) => readCases(writeCases([{ ...own, ...changed }]))[0];
  assert.deepEqual(read({}).choice, own.choice);
  assert.deepEqual(read({ choice: { method: { toString: 1 }, target: [1], versus: {}, span: { start: "0" } } }).choice, {});
  for (const input of [{}, { text: 3 }, { text: null }, { file: "/etc/passwd" }, { messages: ["x"] }, { answer: [1.5] }, [], "x", { text: "a", __proto__x: 1 }])
    assert.throws(() => read({ input }), /Case 1 of this file is not complete/);
  assert.deepEqual(read({ input: { messages: [{ role: "user", content: "hi" }], answer: [1, 2] } }).input.answer, [1, 2]);
});

test("an item of a run is opened as a case", () => {
  const kindOf = (name) => ({ pairs: "pair", texts: "text" })[name];
  const row = { source: "one\ntwo\nthree", answer: "yes", probability: 0.88944, method: "rollout" };
  const pair = makeItem({ model: "pairs" }, row, kindOf);
  assert.deepEqual(pair.input, { text: "one", second: "two\nthree" });
  assert.equal(pair.title, "Why yes? 88.9%");
  assert.deepEqual(makeItem({ model: "texts" }, row, kindOf).input, { text: row.source });
  assert.equal(makeItem({ model: null }, { ...row, probability: null }, kindOf).title, "");
});

test("what two models say is compared by their labels", () => {
  assert.equal(compareAnswers(["a", { label: "positive" }], ["b", { label: "POSITIVE" }]), "Both say positive.");
  assert.equal(compareAnswers(["a", { label: "good" }], ["b", { label: "bad" }]), "They differ: a says good, b says bad.");
  assert.equal(compareAnswers(["a", undefined], ["b", { label: "bad" }]), "");
});
