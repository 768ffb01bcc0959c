// The items of bulk runs that were named at the start: listed, and explained again by the model that they were made with.

import { ask, makeLatest } from "./api.js";
import { fill, make, makeButton, makeChoice, makeSelect } from "./dom.js";
import { makeNotice } from "./notice.js";
import { count, formatProbability, shorten } from "./wording.js";

const ORDERS = [["stored", "All"], ["wrong", "Wrong answers, the surest first"], ["unsure", "Least sure first"], ["failed", "Not explained"]];
const COLUMNS = ["item", "the model says", "probability", "label in the data", "method", "again"];

/** names: of the runs; open(item) explains one again; kindOf(model) says what a model of that name takes. */
export function makeRuns({ names, open, kindOf }) {
  const notice = makeNotice(), latest = makeLatest();
  const [about, choices, table, pages, picture] = ["p", "div", "div", "div", "figure"].map((name) => make(name));
  about.className = "about";
  choices.className = pages.className = "row";
  const element = make("section", { class: "card runs", "aria-label": "Runs", hidden: !names.length }, make("h3", {}, "Runs"), about, choices, notice.line, notice.element, table, pages, picture);
  let run = 0, order = "stored", offset = 0, shown = null;

  async function load(changed = {}) {
    ({ run, order, offset } = { run, order, offset: 0, ...changed });
    showChoices();
    const found = await notice.during("Reading the run", () => latest((signal) => ask("run", { run, order, offset }, { signal })), load);
    if (!found) return;
    shown = found;
    show();
  }

  function showChoices() {
    const listed = names.map((name, i) => [i, name]);
    fill(choices, names.length > 1 && makeSelect("Run", listed, run, (chosen) => load({ run: Number(chosen) }), { "data-key": "run" }), makeChoice("Show", ORDERS, order, (chosen) => load({ order: chosen })));
  }

  function show() {
    const { rows, total, of, model, data, notes } = shown;
    fill(about, `${shown.name}: what ${model ?? "an unnamed model"} said about ${data ?? "the data"}, as stored by bulk; ${count(of, "row")}. Open an item to ask the model again. `, notes.join(" "));
    fill(picture, null);
    fill(table, total ? make("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Items" }, make("table", {},
      make("thead", {}, make("tr", {}, COLUMNS.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, rows.map(makeRow)))) : make("p", {}, "No item is of this kind."));
    fill(pages, offset > 0 && makeButton("Previous", () => load({ offset: Math.max(offset - rows.length, 0) }), { "data-key": "previous" }),
      total > rows.length && make("span", { class: "dim" }, `${offset + 1} to ${offset + rows.length} of ${total.toLocaleString("en")}`),
      offset + rows.length < total && makeButton("Next", () => load({ offset: offset + rows.length }), { "data-key": "next" }));
  }

  function makeRow(row, i) {
    const named = row.kind === "text" && row.source ? shorten(row.source, 80) : row.id;
    const wrong = row.is_right === false ? " (the answer is another)" : "";
    const act = row.error ? make("span", { class: "dim" }, row.message ?? row.error)
      : row.kind === "text" ? makeButton("Open", () => open(makeItem(shown, row, kindOf)), { "data-key": `open-${i}`, "aria-label": `Open ${shorten(named, 40)}` })
        : makeButton("Stored map", () => showMap(row), { "data-key": `map-${i}`, "aria-label": `Stored map of ${shorten(named, 40)}` });
    const cells = [row.error ? "not explained" : row.answer, formatProbability(row.probability), row.label === null ? "–" : `${row.label}${wrong}`, row.method];
    return make("tr", {}, make("th", { scope: "row", class: "long" }, named), cells.map((cell, n) => make("td", { "data-name": COLUMNS[n + 1] }, cell)), make("td", {}, act));
  }

  async function showMap(row) {
    const found = await notice.during("Reading the map", () => ask("run-map", { run, part: row.part, row: row.row }));
    if (found) fill(picture, make("img", { src: found.preview, alt: `Stored map of ${row.source}`, class: "stored-map" }),
      make("figcaption", {}, `${row.source}: ${row.answer}, ${formatProbability(row.probability)}, by ${row.method}. To ask the model again, choose the file itself at the top.`));
  }

  if (names.length) load();
  return { element };
}

/** A row as a case that the page can open. Of a pair, a run stores both texts with a line break between them. */
export function makeItem({ model }, { source, answer, probability, method }, kindOf) {
  const [text, ...second] = kindOf(model) === "pair" ? source.split("\n") : [source];
  const input = second.length ? { text, second: second.join("\n") } : { text };
  const title = answer && probability !== null ? `Why ${answer}? ${(100 * probability).toFixed(1)}%` : "";
  return { model: model ?? "", kind: "text", input, title, name: shorten(text, 40), choice: { method } };
}
