// The page: which model, which workbench, and the address that restores the view.

import { readAddress, writeAddress } from "./address.js";
import { ask, read, ServerError } from "./api.js";
import { fromDataUrl, nameType } from "./case_file.js";
import { makeCases } from "./cases.js";
import { announce, fill, find, make } from "./dom.js";
import { makeImageBench } from "./image_bench.js";
import { makeLanguageBench } from "./language_bench.js";
import { makeNotice } from "./notice.js";
import { copyText, makePythonBox } from "./python_box.js";
import { makeRuns } from "./runs.js";
import { makeTextBench } from "./text_bench.js";
import { readTarget } from "./workbench.js";

const BENCHES = { image: makeImageBench, text: makeTextBench, pair: makeTextBench, "language model": makeLanguageBench };
const LOADING = 1000; // milliseconds between two looks at a model that is loading

const page = { models: [], limits: {}, colours: null, model: null, bench: null, settings: {} };
const notice = makeNotice();
const python = makePythonBox();
const cases = makeCases({ ask, describe: () => page.bench?.describe() ?? null, open: openCase, changed: showCount, findModel });
const recorded = make("p", { class: "recorded", hidden: true });

async function start() {
  find("below").append(cases.element);
  document.body.append(python.element);
  find("bench").before(notice.line, notice.element, recorded);
  find("pin").addEventListener("click", pin);
  find("python").addEventListener("click", python.open);
  find("link").addEventListener("click", copyLink);
  find("cases-button").addEventListener("click", showCases);
  find("model").addEventListener("change", (event) => chooseModel(Number(event.target.value), {}));
  window.addEventListener("hashchange", () => { if (location.hash !== writeAddress(page.settings)) openAddress(); });
  await load();
}

async function load() {
  try {
    page.colours = await (await fetch("/static/colours.json")).json();
  } catch {
    return notice.fail({ code: "E_PAGE_OFFLINE", message: "The server does not answer.", help: "Start whyformer serve again and open its link." }, load);
  }
  const listed = await notice.during("Connecting", () => read("models"), load);
  if (!listed) return undefined;
  Object.assign(page, { models: listed.models, limits: listed.limits, default: listed.default });
  find("version").textContent = `whyformer ${listed.version}`;
  showModels();
  cases.element.before(makeRuns({ names: listed.runs ?? [], open: openCase, kindOf: (name) => findModel(name)?.kind }).element);
  return openAddress();
}

function showModels() {
  fill(find("model"), page.models.map((model) => make("option", { value: model.index }, model.state === "ready" ? model.name : `${model.name} (${model.state})`)));
}

function openAddress() {
  const settings = readAddress(location.hash);
  const named = page.models.find((model) => model.name === settings.model);
  if (settings.model && !named) notice.fail({ code: "E_MODEL_NOT_FOUND", message: `The link asks for ${settings.model}, which this server does not have.`, help: "It shows the first model instead." });
  return chooseModel((named ?? page.models[page.default ?? 0]).index, settings);
}

/** Open the workbench of a model; waits while it is loading. */
async function chooseModel(index, settings) {
  let model = page.models.find((each) => each.index === index);
  page.bench?.close();
  recorded.hidden = true;
  Object.assign(page, { model, bench: null });
  find("model").value = index;
  while (model.state === "loading") {
    showWaiting(model);
    await new Promise((resolve) => setTimeout(resolve, LOADING));
    if (page.model !== model) return; // another one was chosen meanwhile
    const listed = await read("models").catch((error) => { notice.fail(error, load); return null; });
    if (!listed) return;
    page.models = listed.models;
    model = page.model = page.models.find((each) => each.index === index);
    showModels();
    find("model").value = index;
  }
  if (model.state === "failed") { showFailed(model); return; }
  await openBench(model, settings);
}

async function openBench(model, settings) {
  page.settings = { ...settings, model: model.name };
  const desk = makeDesk(model);
  page.bench = (BENCHES[model.kind] ?? makeTextBench)(desk, settings);
  fill(find("bench"), page.bench.element);
  document.title = `${model.name} – whyformer`;
  setAddress({});
  const sample = /^\d+$/.test(settings.sample ?? "") ? Number(settings.sample) : null;
  const choice = { method: settings.method, target: readTarget(settings.target), versus: readTarget(settings.versus) };
  await page.bench.restore({ sample, choice });
}

/** What a workbench gets from the page. */
function makeDesk(model) {
  const isShown = () => page.model === model; // late answers of a model that was left change nothing
  const desk = {
    model, invitation: invite(model), limits: page.limits, colours: page.colours, renew: async () => {},
    setAddress: (changed) => { if (isShown()) setAddress(changed); },
    setCode: (code) => { if (isShown()) python.setCode(code); },
    others: () => page.models.filter((each) => each.index !== model.index && each.state === "ready" && each.kind === model.kind && each.task === model.task),
  };
  desk.ask = async (route, body, options) => {
    try {
      return await ask(route, body, options);
    } catch (error) {
      if (error.code !== "E_PAGE_GONE") throw error;
      await desk.renew(); // the server dropped the image; send it again
      return ask(route, body, options);
    }
  };
  return desk;
}

/** What an empty workbench asks for. */
function invite(model) {
  const answers = model.labels ? ` and answers one of ${model.labels.length} classes` : "";
  const takes = { image: "an image", text: "a text", pair: "two texts" }[model.kind];
  return takes ? `${model.name} takes ${takes}${answers}. Ask it why.` : `${model.name} continues a text. Ask it why.`;
}

function showWaiting(model) {
  fill(find("bench"), make("div", { class: "waiting" }, make("span", { class: "spinner", "aria-hidden": "true" }), make("p", {}, `Loading ${model.name} …`)));
}

function showFailed(model) {
  const { message = "It could not be loaded.", help = "" } = model.error ?? {};
  fill(find("bench"), make("div", { class: "waiting" }, make("p", {}, make("strong", {}, `${model.name}: `), `${message} ${help}`)));
}

function setAddress(changed) {
  Object.assign(page.settings, changed);
  history.replaceState(null, "", writeAddress(page.settings));
}

async function copyLink() {
  const done = await copyText(location.href);
  flash(find("link"), done ? "Link copied" : "See address bar");
}

function pin() {
  flash(find("pin"), cases.pin() ? "Pinned" : "Nothing to pin yet");
}

/** Show on a button what became of a click, for a moment. */
function flash(button, words) {
  const usual = (button.dataset.usual ??= button.textContent);
  button.textContent = words;
  announce(words);
  setTimeout(() => { button.textContent = usual; }, 2000);
}

function showCases() {
  cases.element.scrollIntoView({ block: "start", behavior: "smooth" });
  cases.element.focus({ preventScroll: true });
}

function showCount(count) {
  find("cases-button").textContent = count ? `Cases (${count})` : "Cases";
}

/** The model of a name, or of the same folder elsewhere: a case may come from another machine. */
function findModel(name) {
  const last = (path) => path.split("/").at(-1);
  return page.models.find((each) => each.name === name) ?? page.models.find((each) => name && last(each.name) === last(name));
}

/** Show a case, or an item of a run, on the model of that name; says whether the answer is the one that was recorded. */
async function openCase(item) {
  const model = findModel(item.model);
  if (!model) return notice.fail({ code: "E_MODEL_NOT_FOUND", message: `This case needs the model ${item.model}, which this server does not have.`, help: `Start it with: whyformer serve ${item.model}` });
  await chooseModel(model.index, {});
  if (!page.bench) return undefined;
  const file = item.picture ? new File([fromDataUrl(item.picture)], item.name || "image", { type: nameType(fromDataUrl(item.picture)) }) : null;
  window.scrollTo({ top: 0, behavior: "smooth" });
  await page.bench.restore({ file, input: file ? null : item.input, choice: item.choice });
  const now = page.bench.describe()?.title;
  if (!now || !item.title) return undefined;
  recorded.hidden = false;
  return fill(recorded, now === item.title ? `The answer is the one that was recorded: ${item.title}` : `Recorded was: ${item.title} This model says now: ${now} It may be another version, or the case was changed.`);
}

start().catch((error) => notice.fail(error instanceof ServerError ? error : { code: String(error), message: "The page could not start.", help: "Reload it." }));
