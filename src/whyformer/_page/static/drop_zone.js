// Where an image comes in: dropped, pasted, chosen from a file, or a sample.

import { make, makeButton, makeId } from "./dom.js";

export function makeDropZone(desk, { open, openSample }) {
  const id = makeId("file");
  const input = make("input", { type: "file", id, accept: "image/*", class: "file-input", "data-key": "file" });
  input.addEventListener("change", () => {
    if (input.files.length) open(input.files[0]);
    input.value = "";
  });
  const samples = (desk.model.samples ?? []).map((sample, i) => makeButton(sample.title, () => openSample(i), { class: "quiet", "data-key": `sample-${i}` }));
  const element = make("div", { class: "drop-zone large" },
    make("label", { for: id, class: "file-label" }, "Choose an image"), input,
    make("span", { class: "drop-words" }, "or drop one here, or paste it"),
    samples.length ? make("span", { class: "samples" }, make("span", { class: "dim" }, "Try this:"), samples) : null);

  function takeFile(items) {
    const file = [...(items ?? [])].find((item) => item instanceof File);
    if (file) open(file);
    return Boolean(file);
  }
  const drop = (event) => {
    event.preventDefault();
    element.classList.remove("over");
    takeFile(event.dataTransfer?.files);
  };
  const over = (event) => {
    event.preventDefault();
    element.classList.add("over");
  };
  const leave = () => element.classList.remove("over");
  const paste = (event) => { if (takeFile(event.clipboardData?.files)) event.preventDefault(); };
  const listeners = { drop, dragover: over, dragleave: leave, paste };
  for (const [name, listener] of Object.entries(listeners)) document.addEventListener(name, listener);

  return {
    element,
    shrink: () => element.classList.remove("large"),
    close: () => { for (const [name, listener] of Object.entries(listeners)) document.removeEventListener(name, listener); },
  };
}
