// One input, one question: what the model answers, why, by which method, and whether that holds when parts are hidden.
//
// The stage shows the input (image_stage.js, text_stage.js); the boxes beside it hold the answer, the method and the
// test. Everything that can be asked again at once has a question of its own, of which only the newest counts.

import { makeAnswerBox, announceMove } from "./answer.js";
import { makeLatest } from "./api.js";
import { announce, fill, make } from "./dom.js";
import { makeMethodBox } from "./method_box.js";
import { makeMethodGrid } from "./method_grid.js";
import { makeNotice } from "./notice.js";
import { chooseHidden } from "./hidden_share.js";
import { compareAnswers, makeOtherModel } from "./other_model.js";
import { makeTestBox } from "./test_box.js";

const TOP = 5; // classes computed ahead
const QUICK = 20; // seconds: after an explanation as fast as this one the curve is measured without being asked for

/** makeStage(handlers) builds the stage; handlers: hide(hidden), target(words), copy, and change(settings). */
export function makeWorkbench(desk, makeStage, settings) {
  const { model, ask } = desk;
  const view = { input: null, title: "", method: pickMethod(model, settings.method), target: readTarget(settings.target), versus: readTarget(settings.versus) };
  const known = { answer: null, maps: new Map(), checked: new Set(), hidden: null, after: null };
  const latest = { explain: makeLatest(), ahead: makeLatest(), hide: makeLatest(), curve: makeLatest(), copy: makeLatest(), check: makeLatest(), other: makeLatest() };

  const notice = makeNotice();
  const question = make("h2", { class: "question" }, desk.invitation);
  const answerBox = makeAnswerBox({ labels: model.labels, what: { "next token": "next token", "answer span": "answer" }[model.task] ?? "class", choose, contrast });
  const methodBox = makeMethodBox({ model, choose: chooseMethod, check });
  const stage = makeStage({ hide, target: choose, copy: { explain: explainCopy, close: closeCopy }, change: desk.setAddress });
  const testBox = makeTestBox({ unit: stage.unit, change: moveSlider, load: loadCurve });
  const grid = makeMethodGrid({ order: model.methods.map((method) => method.name), notice, ask: explainByMany, drawSmall: stage.drawSmall, choose: chooseMethod });

  const other = makeOtherModel(desk, explainByOther);
  const side = make("aside", { class: "side", "aria-label": "Answer and method", hidden: true },
    makeCard("Answer", answerBox.element), makeCard("Method", methodBox.element), makeCard("Test it", testBox.element));
  const below = make("div", { class: "below", hidden: true }, other.element, makeCard("Other methods", grid.element));
  const element = make("div", { class: `workbench empty ${model.kind === "image" ? "of-image" : "of-text"}` },
    make("div", { class: "main-column" }, make("div", { class: "question-row" }, question, notice.line), notice.element, stage.element), side, below);

  // --- asking ---

  /** Explain another input; `given` may name the target to start with. */
  async function open(input, title, given = {}) {
    Object.values(latest).forEach((each) => each.stop());
    Object.assign(view, { input, title, target: null, versus: null }, given);
    Object.assign(known, { answer: null, maps: new Map(), checked: new Set(), hidden: null, after: null });
    testBox.show({ curve: null, share: 0, mode: "hide", isLoading: false });
    grid.clear(view.method);
    stage.clear();
    await explain();
  }

  const makeBody = (more = {}) => ({ model: model.index, input: view.input, targets: [view.target], versus: view.versus, methods: [view.method], ...more });

  async function explain() {
    const key = nameMap(view);
    if (known.maps.has(key)) {
      showAll();
      if (known.isQuick) loadCurve();
      return undefined;
    }
    latest.ahead.stop();
    latest.curve.stop();
    const started = performance.now();
    const answer = await notice.during("Explaining", () => latest.explain((signal) => ask("explain", makeBody(), { signal, listen: notice.listen })), explain);
    if (!answer) return undefined;
    const isFirst = known.answer === null;
    takeAnswer(answer);
    if (!isNotation(view.target)) view.target = nameTarget(answer.maps[0].target) ?? view.target;
    known.maps.set(key, answer.maps[0]);
    showAll();
    if (isFirst) other.renew();
    if (isFirst) announce(`${question.textContent} Explained by ${view.method}.`);
    known.isQuick = performance.now() - started < QUICK * 1000;
    if (isFirst && answer.classes.length > 1) await explainAhead();
    if (known.isQuick && known.maps.get(key) === answer.maps[0] && !testBox.state.curve) loadCurve();
    return answer;
  }

  function takeAnswer(answer) {
    if (known.answer === null || !known.answer.classes.length) known.answer = answer;
    known.code = answer.code;
    known.maps.set(nameMap({ ...view, target: nameTarget(answer.maps[0].target) }), answer.maps[0]);
  }

  async function explainAhead() {
    const method = view.method, body = makeBody({ top: TOP, methods: [method] });
    delete body.targets;
    const answer = await latest.ahead((signal) => ask("explain", { ...body, versus: null }, { signal })).catch(() => null);
    for (const map of answer?.maps ?? []) known.maps.set(nameMap({ method, target: nameTarget(map.target), versus: null }), map);
  }

  async function check() {
    methodBox.show({ method: view.method, map: getMap(), checked: false, isChecking: true });
    const key = nameMap(view);
    const answer = await notice.during("Checking", () => latest.check((signal) => ask("explain", makeBody({ health: true }), { signal, listen: notice.listen })), check);
    if (answer) {
      known.maps.set(key, answer.maps[0]);
      known.checked.add(key);
    }
    showMethod();
  }

  // --- choosing ---

  function choose(target) {
    view.target = target;
    if (view.versus === target) view.versus = null;
    resetTest();
    explain();
  }

  function contrast(versus) {
    view.versus = versus;
    resetTest();
    explain();
  }

  function chooseMethod(method) {
    view.method = method;
    resetTest();
    explain();
  }

  function resetTest() {
    latest.curve.stop();
    if (testBox.state.share) {
      stage.hideUnits(null);
      known.after = null;
    }
    testBox.show({ curve: null, share: 0, isLoading: false });
    setAddress();
  }

  // --- hiding ---

  async function hide(hidden) {
    if (testBox.state.share) testBox.show({ share: 0, curve: testBox.state.curve });
    await predict(hidden);
  }

  async function predict(hidden) {
    known.hidden = hidden;
    if (hidden === null) {
      latest.hide.stop();
      known.after = null;
      return showAnswer();
    }
    const body = { model: model.index, input: view.input, variants: [{ hidden }] };
    const answer = await notice.during("", () => latest.hide((signal) => ask("predict", body, { signal })), () => predict(hidden));
    if (answer) showMoved(answer);
    return undefined;
  }

  function showMoved(answer) {
    known.after = matchClasses(known.answer.classes, answer);
    known.code = answer.code;
    showAnswer();
    desk.setCode(known.code);
    announceMove(known.answer.classes, known.after, view.target);
  }

  function moveSlider(share, mode) {
    setAddress();
    const { curve } = testBox.state;
    if (!curve) return;
    predict(stage.hideUnits(share || mode === "keep" ? chooseHidden(curve.order, share, mode) : null));
  }

  async function loadCurve() {
    testBox.show({ isLoading: true });
    const body = { model: model.index, input: view.input, method: view.method, target: view.target, versus: view.versus };
    const curve = await latest.curve((signal) => ask("curve", body, { signal })).catch((error) => { notice.fail(error, loadCurve); return null; });
    testBox.show({ isLoading: false, ...(curve ? { curve } : {}) });
  }

  async function explainByMany(methods, options) {
    const answer = await ask("explain", makeBody({ methods }), options);
    for (const map of answer.maps) known.maps.set(nameMap({ ...view, method: map.method }), map);
    return answer;
  }

  // --- another model, and a copy beside the original ---

  async function explainByOther(second) {
    const body = { model: second.index, input: view.input, targets: [null], methods: [second.default_method] };
    const answer = await notice.during(`Asking ${second.name}`, () => latest.other((signal) => ask("explain", body, { signal })), () => other.renew());
    if (!answer) return null;
    const [map] = answer.maps;
    return [make("p", {}, compareAnswers([model.name, known.answer.classes[0]], [second.name, answer.classes[0]])), make("p", { class: "other-question" }, `${second.name}: ${map.target.question} By ${map.method}.`), stage.drawSmall(answer, map)];
  }


  async function explainCopy(input) {
    const body = { ...makeBody(), input };
    const answer = await notice.during("", () => latest.copy((signal) => ask("explain", body, { signal })), () => explainCopy(input));
    if (answer) {
      const moved = await notice.during("", () => latest.hide((signal) => ask("predict", { model: model.index, input: view.input, variants: [{ input }] }, { signal })));
      if (moved) showMoved(moved);
    }
    return answer;
  }

  function closeCopy() {
    known.after = null;
    showAnswer();
  }

  // --- showing ---

  const getMap = () => known.maps.get(nameMap(view)) ?? null;

  function showAll() {
    const map = getMap();
    element.classList.remove("empty");
    side.hidden = below.hidden = false;
    fill(question, map?.target.question);
    stage.show(known.answer, map);
    showAnswer();
    showMethod();
    grid.show({ method: view.method });
    setAddress();
    desk.setCode(known.code);
  }

  function showAnswer() {
    side.firstChild.hidden = !known.answer.classes.length;
    answerBox.show({ classes: known.answer.classes, after: known.after, target: view.target, versus: view.versus });
  }

  const showMethod = () => methodBox.show({ method: view.method, map: getMap(), checked: known.checked.has(nameMap(view)) });

  function setAddress() {
    const isPredicted = view.target === known.answer?.classes[0]?.index;
    desk.setAddress({ method: view.method === model.default_method ? null : view.method, target: isPredicted ? null : view.target, versus: view.versus });
  }

  function describe() {
    if (!known.answer) return null;
    return { title: question.textContent, model: model.name, kind: model.kind, input: view.input, request: { route: "explain", ...makeBody() },
      choice: { method: view.method, target: view.target, versus: view.versus } };
  }

  testBox.show({});
  grid.show({});
  return { element, open, describe, notice, stage, view };
}

// --- pure parts ---

function makeCard(title, ...children) {
  return make("section", { class: "card" }, make("h3", {}, title), children);
}

export function pickMethod(model, wanted) {
  return model.methods.some((method) => method.name === wanted && method.available !== false) ? wanted : model.default_method;
}

/** A target of the address: an index, or words. */
export function readTarget(text) {
  if (text === undefined || text === null || text === "") return null;
  return /^\d+$/.test(text) ? Number(text) : text;
}

/** Whether a target is more than a class: "entity:3-4", "token@5". */
export function isNotation(target) {
  return typeof target === "string" && /[:@]/.test(target);
}

/** What asks for a target again: the index of a class, or its notation. */
export function nameTarget({ index, spec }) {
  return index >= 0 ? index : spec ?? null;
}

export function nameMap({ method, target, versus }) {
  return JSON.stringify([method, target, versus]);
}

/** The probabilities of the first answer's classes after a change, in their order. */
export function matchClasses(classes, { before, variants }) {
  const now = new Map(before.classes.map((row, i) => [row.index, variants[0].of_before[i]]));
  return classes.map((row) => now.get(row.index) ?? { ...row, probability: null });
}
