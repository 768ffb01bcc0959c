// The workbench of language models: an answer, and which passages, roles and words it comes from.

import { makeLatest } from "./api.js";
import { isEmpty, makeComposer } from "./composer.js";
import { announce, fill, make, makeButton, makeChoice, makeSelect } from "./dom.js";
import { makeLegend } from "./legend.js";
import { makeModelNotes, makeSign } from "./method_box.js";
import { makeNotice } from "./notice.js";
import { makeOrigin } from "./origin.js";
import { describeWords, joinSpan, locateUnits, nameWithout, splitAnswer } from "./sources.js";
import { makeTextBench } from "./text_bench.js";
import { makeWordsView } from "./words.js";
import { makeMethodGrid } from "./method_grid.js";
import { makeOtherModel } from "./other_model.js";
import { drawAgain } from "./again.js";
import { count, shorten } from "./wording.js";

const PARTS = [["", "as the prompt is written"], ["passage", "passages"], ["sentence", "sentences"], ["paragraph", "paragraphs"], ["document", "documents"], ["role", "roles"]];
const EFFORTS = [["fast", "fast"], ["checked", "checked"], ["thorough", "thorough"]];

/** Both questions that a language model can be asked: about an answer, and about its next token. */
export function makeLanguageBench(desk, settings) {
  const answers = makeAnswerBench(desk, settings), next = makeTextBench(desk, settings);
  let tab = settings.tab === "next" ? "next" : "answer";
  const tabs = make("div", { class: "tabs" });
  const element = make("div", { class: "language" }, tabs, answers.element, next.element);

  function show() {
    fill(tabs, makeChoice("Explain", [["answer", "An answer"], ["next", "The next token"]], tab, choose));
    answers.element.hidden = tab !== "answer";
    next.element.hidden = tab !== "next";
  }
  function choose(chosen) {
    tab = chosen;
    desk.setAddress({ tab: tab === "next" ? "next" : null });
    show();
  }
  const pick = () => (tab === "next" ? next : answers);
  show();
  return {
    element,
    describe: () => pick().describe(),
    restore(given) {
      if (given.choice?.tab) choose(given.choice.tab);
      return pick().restore(given);
    },
    close() {},
  };
}

function makeAnswerBench(desk, settings) {
  const { model, ask } = desk;
  const view = { input: null, answer: null, ids: null, span: null, by: "", effort: "checked", without: new Set(), method: null };
  const known = { cited: null, words: null, passages: [], again: null };
  const latest = { generate: makeLatest(), cite: makeLatest(), words: makeLatest(), again: makeLatest(), other: makeLatest() };

  const notice = makeNotice();
  const composer = makeComposer(desk, { generate, explainLog, openSample: (i) => restore({ sample: i }) });
  const answerText = makeWordsView({ label: "The answer: select a part of it", verb: "explain this part", press: (i) => select([i, i]), select });
  const streaming = make("p", { class: "streaming", "aria-live": "off" });
  const chosen = make("div", { class: "row chosen-row", "aria-live": "polite" });
  const legend = make("div", { class: "legend-place" });
  const again = make("div", { class: "again", "aria-live": "polite" });
  const answerCard = make("section", { class: "card answer-card", hidden: true }, make("h3", {}, "Answer"), streaming, answerText.element, legend, chosen, again);
  const origin = makeOrigin({ toggle, answerAgain, describeWithout: () => nameWithout(known.passages, view.without) });
  const promptCard = make("section", { class: "card prompt-card", hidden: true }, make("h3", {}, "Prompt, coloured by what it gave to the answer"), origin.blocks);
  const grid = makeMethodGrid({ order: model.methods.map((method) => method.name), notice, ask: explainByMany, drawSmall: drawPrompt, choose: colourBy });
  const gridCard = make("section", { class: "card", hidden: true }, make("h3", {}, "Other methods"), grid.element);
  const other = makeOtherModel(desk, askOther);
  const settingsBox = make("div", { class: "origin-settings" });
  const side = make("aside", { class: "side", "aria-label": "Where the answer comes from", hidden: true },
    make("section", { class: "card" }, make("h3", {}, "Where it comes from"), origin.ranking), make("section", { class: "card" }, make("h3", {}, "How it is measured"), settingsBox));
  const element = make("div", { class: "workbench empty answers" }, make("div", { class: "main-column" }, composer.element, notice.line, notice.element, answerCard, promptCard, other.element, gridCard), side);

  // --- getting an answer ---

  function start(input) {
    Object.values(latest).forEach((each) => each.stop());
    Object.assign(view, { input, answer: null, ids: null, span: null, without: new Set() });
    Object.assign(known, { cited: null, words: null, passages: [], again: null });
    notice.hideError();
    fill(again, null);
    grid.clear(null);
  }

  async function generate(input, tokens) {
    if (isEmpty(input)) return notice.fail({ code: "E_TXT_EMPTY", message: "There is no prompt.", help: "Write one, or try a sample." });
    start(input);
    showStreaming("");
    const written = await write({ input, tokens, show: showStreaming, question: latest.generate });
    if (!written) return undefined;
    Object.assign(view, { answer: written.answer, ids: written.ids });
    return cite();
  }

  /** Generate with progress; stopping keeps what was written so far. */
  async function write({ input, tokens, without = [], show, question }) {
    let last = null;
    const listen = (name, data) => {
      notice.listen(name, data);
      if (name !== "token") return;
      last = { answer: data.text, ids: data.ids };
      show(data.text);
    };
    const body = { model: model.index, input, max_new_tokens: tokens, without, ...(without.length ? { by: view.by || null } : {}) };
    const answer = await notice.during("Generating", () => question((signal) => ask("generate", body, { signal, listen })), () => generate(input, tokens), () => question.stop());
    const found = answer ?? last;
    if (!found) show("Stopped before the first token. Generate again, or paste an answer from a log.");
    if (answer) desk.setCode(answer.code);
    if (found && !found.answer.trim() && !found.ids?.length) notice.fail({ code: "E_ANSWER", message: "The model gave an empty answer.", help: "Change the prompt, or paste an answer from a log." });
    return found?.ids?.length ? found : null;
  }

  async function explainLog(input) {
    if (!input.log && (!input.prompt.trim() || !input.answer.trim()))
      return notice.fail({ code: "E_TXT_EMPTY", message: "A log needs a prompt and its answer.", help: "Paste both, or one JSON record." });
    start(input);
    return cite();
  }

  const withAnswer = () => (view.ids ? { ...view.input, answer: view.ids } : view.input);

  // --- where it comes from ---

  async function cite() {
    const body = makeBody();
    const question = (signal) => askSources(body, { signal, listen: notice.listen });
    const cited = await notice.during("Finding where the answer comes from", () => latest.cite(question), cite, () => latest.cite.stop());
    if (!cited) return;
    Object.assign(known, { cited, words: null });
    known.passages = [...cited.sources].sort((a, b) => a.index - b.index);
    view.answer = cited.answer;
    showAll();
    announce(cited.reading ? `The answer ${cited.reading.words}.` : "Explained.");
    if (view.method) colourBy(view.method);
    grid.clear(cited.method);
    other.renew();
  }

  /** Cite the passages; a prompt without passages still has words, which an explanation scores. */
  async function askSources(body, options) {
    try {
      return await ask("cite", body, options);
    } catch (error) {
      if (error.status !== 422 || body.by) throw error;
      const answer = await ask("explain", { model: body.model, input: body.input, targets: [null], span: body.span }, options);
      return describeWords(answer, error.message);
    }
  }

  const makeBody = () => ({ model: model.index, input: withAnswer(), by: view.by || null, span: view.span, effort: view.effort });

  /** Colour the words by another method than the one that the citation used. */
  async function colourBy(method) {
    view.method = method || null;
    if (!method) { known.words = null; return showAll(); }
    const body = { model: model.index, input: withAnswer(), targets: [null], methods: [method], span: view.span };
    const answer = await notice.during("Explaining", () => latest.words((signal) => ask("explain", body, { signal, listen: notice.listen })), () => colourBy(method));
    if (!answer) return undefined;
    known.words = { ...answer.maps[0], units: answer.units };
    grid.show({ method });
    desk.setCode(answer.code);
    return showAll();
  }

  function explainByMany(methods, options) {
    return ask("explain", { model: model.index, input: withAnswer(), targets: [null], methods, span: view.span }, options);
  }

  /** The prompt by one method. */
  function drawPrompt(answer, map) {
    const units = answer.units.word, scale = map.scale.word, { prompt } = splitAnswer(units, answer.regions);
    const small = makeWordsView({ label: `The prompt, coloured by ${map.method}` });
    small.show({ text: answer.text, units: prompt.map((i) => units[i]), scores: prompt.map((i) => map.scores.word[i]), limits: [scale.low, scale.high], signed: map.signed });
    return small.element;
  }

  /** What another model answers to the same prompt, or where it has the answer of a log from. */
  async function askOther(second) {
    const { answer, ...asked } = view.input, isLog = view.ids === null;
    return notice.during(`Asking ${second.name}`, () => latest.other(async (signal) => {
      const written = isLog ? null : await ask("generate", { model: second.index, input: asked, max_new_tokens: composer.tokens }, { signal });
      const input = isLog ? view.input : { ...asked, answer: written.ids };
      const cited = await askSources({ model: second.index, input, by: view.by || null, span: null, effort: view.effort }, { signal });
      return [make("p", { class: "streaming" }, cited.answer.trim()), (cited.lines ?? []).map((line) => make("p", { class: "about" }, line))].flat();
    }), () => other.renew());
  }

  function select(range) {
    const { answer } = splitAnswer(known.cited.units.word, known.cited.regions);
    const located = locateUnits(known.cited.answer, answer.map((i) => known.cited.units.word[i]));
    const span = range && joinSpan(located, range);
    if (JSON.stringify(span) === JSON.stringify(view.span)) return;
    view.span = span;
    showAnswer();
    cite();
  }

  // --- leaving passages out ---

  function toggle(index) {
    if (view.without.has(index)) view.without.delete(index);
    else view.without.add(index);
    showOrigin();
  }

  async function answerAgain() {
    const names = nameWithout(known.passages, view.without), show = (text) => showAgain(names, text);
    show("");
    const written = await write({ input: view.input, tokens: composer.tokens, without: [...view.without], show, question: latest.again });
    if (written) show(written.answer);
    if (written) announce(`Without ${names}: ${written.answer}`);
  }

  const showAgain = (names, text) => fill(again, drawAgain(names, known.cited.answer, text));

  // --- showing ---

  function showStreaming(text) {
    element.classList.remove("empty");
    answerCard.hidden = false;
    promptCard.hidden = side.hidden = gridCard.hidden = other.element.hidden = true;
    answerText.element.hidden = true;
    fill(legend, null);
    fill(chosen, null);
    streaming.hidden = false;
    fill(streaming, text || "…");
  }

  function showAll() {
    element.classList.remove("empty");
    streaming.hidden = true;
    answerText.element.hidden = answerCard.hidden = promptCard.hidden = side.hidden = gridCard.hidden = false;
    showAnswer();
    showOrigin();
    showSettings();
    desk.setCode(known.cited.code);
  }

  const getWords = () => known.words ?? known.cited;

  function showAnswer() {
    const { cited } = known, words = getWords(), units = words.units.word;
    const { answer } = splitAnswer(units, cited.regions);
    const listed = answer.map((i) => units[i]), located = locateUnits(cited.answer, listed), scale = words.scale.word;
    const inSpan = view.span && located.flatMap(({ start, stop }, i) => (start < view.span.stop && stop > view.span.start ? [i] : []));
    answerText.show({
      text: cited.answer, units: listed.map((unit, i) => ({ ...unit, start: located[i].start, end: located[i].stop, ...(i ? {} : { before: "" }) })),
      scores: answer.map((i) => words.scores.word[i]), limits: [scale.low, scale.high], signed: words.signed,
      selected: inSpan?.length ? [inSpan[0], inSpan.at(-1)] : null,
    });
    fill(legend, makeLegend([scale.low, scale.high], words.signed));
    fill(chosen, make("span", { class: "dim" }, view.span ? `Explained: “${[...cited.answer].slice(view.span.start, view.span.stop).join("")}”` : "Explained: the whole answer. Click a word or drag over several to explain only those."),
      view.span && makeButton("Explain the whole answer", () => { view.span = null; showAnswer(); cite(); }, { class: "quiet", "data-key": "whole" }));
  }

  function showOrigin() {
    origin.show({ cited: known.cited, words: getWords(), without: view.without });
  }

  function showSettings() {
    const methods = model.methods.filter((method) => method.available !== false).map((method) => [method.name, `${method.name} · ${method.cost}`]);
    fill(settingsBox, makeSelect("Parts", PARTS, view.by, (by) => { view.by = by; view.without.clear(); cite(); }, { "data-key": "by" }),
      makeSelect("Effort", EFFORTS, view.effort, (effort) => { view.effort = effort; cite(); }, { "data-key": "effort" }),
      makeSelect("Words by", [["", `${known.cited.method ?? "the default"} (default)`], ...methods], view.method ?? "", colourBy, { "data-key": "words-by" }),
      known.cited.notes?.length ? makeSign({ level: "plain", label: count(known.cited.notes.length, "note"), words: known.cited.notes.join("\n") }) : null, makeModelNotes(model));
  }

  /** The question behind the view, for an export. */
  function makeRequest() {
    if (known.cited.sources.length) return { route: "cite", ...makeBody() };
    return { route: "explain", model: model.index, input: withAnswer(), targets: [null], span: view.span };
  }

  async function restore({ input = null, sample = null, choice = {} }) {
    const found = input ?? model.samples?.[sample]?.input;
    if (!found) return undefined;
    if (choice.span) view.span = choice.span;
    const { answer, ...asked } = found;
    composer.set(Array.isArray(answer) ? asked : found);
    desk.setAddress({ sample: input ? null : sample });
    if (found.log || typeof answer === "string") return explainLog(found);
    if (!Array.isArray(answer)) return generate(found, composer.tokens);
    start(asked);
    Object.assign(view, { ids: answer, span: choice.span ?? null });
    return cite();
  }

  return {
    element,
    restore,
    describe() {
      if (!known.cited) return null;
      const title = known.cited.reading?.words ?? "Where the answer comes from";
      return { title, name: shorten(known.cited.answer, 40), model: model.name, kind: model.kind, input: withAnswer(), request: makeRequest(), choice: { span: view.span } };
    },
  };
}
