// Cases: what was pinned, with a name and a note. They live in this tab; a file keeps them.

import { ServerError, upload } from "./api.js";
import { fromDataUrl, nameType, readCases, toDataUrl, writeCases } from "./case_file.js";
import { announce, fill, make, makeButton, makeId } from "./dom.js";
import { makeNotice } from "./notice.js";
import { count } from "./wording.js";

const EXPORTS = [["html", "Page"], ["json", "JSON"], ["notebook", "Notebook"]];

/** describe() gives the view as it is; open(case) shows one again; findModel(name) a model of this server. */
export function makeCases({ ask, describe, open, changed, findModel }) {
  let cases = [];
  const notice = makeNotice();
  const list = make("ul", { class: "case-list" });
  const actions = make("div", { class: "row" });
  const file = make("input", { type: "file", accept: ".json,application/json", class: "file-input", id: makeId("cases") });
  file.addEventListener("change", async () => {
    if (file.files.length) await load(file.files[0]);
    file.value = "";
  });
  const element = make("section", { class: "card cases", id: "cases", "aria-label": "Cases", tabindex: -1 }, make("h3", {}, "Cases"),
    make("p", { class: "about" }, "Pin a view, with the button at the top, to keep it beside others. Cases are kept in this tab only: download them before you close it."),
    actions, notice.line, notice.element, list);

  function show() {
    fill(actions, makeButton("Download cases", download, { "data-key": "download", set: { disabled: !cases.length } }),
      make("label", { for: file.id, class: "file-label small" }, "Load cases"), file,
      make("span", { class: "export row", role: "group", "aria-label": "Export all cases as" }, make("span", { class: "dim" }, "Export as"),
        EXPORTS.map(([format, name]) => makeButton(name, () => exportAs(format), { class: "quiet", "data-key": `export-${format}`, set: { disabled: !cases.length } }))));
    fill(list, cases.map(makeItem));
    changed(cases.length);
  }

  function makeItem(item, i) {
    const [nameId, noteId] = [makeId("name"), makeId("note")];
    const name = make("input", { id: nameId, class: "case-name", "data-key": `name-${i}`, maxlength: 120 });
    name.value = item.name;
    name.addEventListener("input", () => { item.name = name.value; });
    const note = make("textarea", { id: noteId, rows: 2, placeholder: "What did you see?", "data-key": `note-${i}`, maxlength: 4000 });
    note.value = item.note;
    note.addEventListener("input", () => { item.note = note.value; });
    return make("li", { class: "case" },
      item.thumbnail ? make("img", { src: item.thumbnail, alt: "" }) : make("div", { class: "case-text", "aria-hidden": "true" }, Object.values(item.input).find((value) => typeof value === "string") ?? item.kind),
      make("div", { class: "case-body" }, make("label", { for: nameId }, `Name of case ${i + 1}`), name,
        make("p", { class: "dim" }, `${item.title} · ${item.model}`), make("label", { for: noteId }, "Note"), note,
        make("div", { class: "row" }, makeButton("Open", () => open(item), { "data-key": `open-${i}`, "aria-label": `Open ${item.name}` }),
          makeButton("Remove", () => { cases.splice(i, 1); show(); }, { class: "quiet", "data-key": `remove-${i}`, "aria-label": `Remove ${item.name}` }))));
  }

  function pin() {
    const found = describe();
    if (!found) return false;
    const { picture } = found;
    const kept = picture instanceof ArrayBuffer ? toDataUrl(picture, nameType(picture)) : picture ?? null;
    cases.push({ note: "", thumbnail: null, ...found, picture: kept, when: new Date().toISOString() });
    show();
    announce(`Pinned as case ${cases.length}.`);
    return true;
  }

  function download() {
    save(writeCases(cases), "whyformer-cases.json", "application/json");
    announce(`${count(cases.length, "case")} downloaded.`);
  }

  async function load(chosen) {
    try {
      const found = readCases(await chosen.text());
      cases = [...cases, ...found];
      notice.hideError();
      show();
      announce(`${count(found.length, "case")} loaded.`);
    } catch (error) {
      notice.fail({ code: "E_PAGE_CASES", message: error.message, help: "Choose a file that was downloaded from this page." });
    }
  }

  /** The server makes the file from the questions; images that it no longer holds are sent again first. */
  async function exportAs(format) {
    const result = await notice.during("Exporting", async () => {
      for (const item of cases) if (item.picture) await upload(fromDataUrl(item.picture));
      const listed = cases.map(({ name, note, request, model }) => ({ title: name, note, request: { ...request, model: indexOf(model) } }));
      return ask("export", { format, cases: listed }, { listen: notice.listen });
    }, () => exportAs(format));
    if (result) save(result.content, result.filename, result.media_type);
  }

  /** Where this server has the model of a case, which may have had another place in the server that it comes from. */
  function indexOf(name) {
    const model = findModel(name);
    if (!model) throw new ServerError({ code: "E_MODEL_NOT_FOUND", message: `A case needs the model ${name}, which this server does not have.`, help: `Start it with: whyformer serve ${name}` });
    return model.index;
  }

  show();
  return { element, pin };
}

/** Hand a text to the browser as a download. */
export function save(text, name, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = make("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
