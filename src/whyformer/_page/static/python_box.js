// The view as a few lines of Python.

import { announce, fill, make, makeButton } from "./dom.js";

export function makePythonBox() {
  const code = make("pre", { tabindex: 0, class: "code", "aria-label": "Python" });
  const copied = make("span", { class: "dim", "aria-live": "polite" });
  const box = make("dialog", { class: "dialog", "aria-labelledby": "python-title" },
    make("h2", { id: "python-title" }, "This view in Python"),
    make("p", {}, "The page computes nothing of its own: these lines give the same numbers."), code,
    make("div", { class: "row" }, makeButton("Copy", copy, { class: "primary" }), makeButton("Close", () => box.close()), copied));
  let text = "";

  async function copy() {
    copied.textContent = (await copyText(text)) ? "Copied." : "Select the lines and copy them.";
    announce(copied.textContent);
  }

  return {
    element: box,
    setCode(given) { text = given ?? ""; },
    open() {
      copied.textContent = "";
      fill(code, text || "Explain something first.");
      box.showModal();
    },
  };
}

/** Put a text on the clipboard; false where the browser does not allow it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
