// Elements without markup. Text reaches the page only through textContent, and styles only through the CSSOM, so that
// no label, token or file name can become HTML and the page needs no inline style or script.

import { makeVisible } from "./wording.js";

/**
 * One element: make("button", { class: "quiet", on: { click: stop } }, "Stop").
 * Strings among the children become text with control characters spelled out; null and false are left out.
 */
export function make(name, attributes = {}, ...children) {
  return dress(document.createElement(name), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(name, attributes = {}, ...children) {
  return dress(document.createElementNS(SVG, name), attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "set") Object.assign(element, value);
    else if (name === "css") for (const [rule, setting] of Object.entries(value)) element.style.setProperty(rule, setting);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...toNodes(children));
  return element;
}

function toNodes(children) {
  return children
    .flat()
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(makeVisible(String(child)))));
}

export function find(id) {
  return document.getElementById(id);
}

/** Replace what an element holds, but keep the focus where it was if an element with the same data-key comes back. */
export function fill(element, ...children) {
  const focus = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...toNodes(children));
  if (focus !== undefined) element.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
}

let counter = 0;

/** A name that no other element has, for labels and descriptions. */
export function makeId(stem) {
  counter += 1;
  return `${stem}-${counter}`;
}

/** A small button; `title` is also its name for a screen reader where the text is only a sign. */
export function makeButton(text, click, attributes = {}) {
  return make("button", { type: "button", ...attributes, on: { click } }, text);
}

/** A row of exclusive choices as radio buttons that look like one switch; arrow keys move between them. */
export function makeChoice(legend, options, chosen, change) {
  const group = makeId("choice");
  const labels = options.map(([value, text, title]) => {
    const input = make("input", { type: "radio", name: group, value, set: { checked: value === chosen } });
    input.addEventListener("change", () => change(value));
    return make("label", { title }, input, make("span", {}, text));
  });
  return make("fieldset", { class: "choice-row" }, make("legend", {}, legend), make("div", { class: "segments" }, labels));
}

/** A list to choose from, with its name before it; options: [value, text]. */
export function makeSelect(name, options, value, change, attributes = {}) {
  const id = makeId("select"), select = make("select", { id, ...attributes }, options.map(([each, text]) => make("option", { value: each }, text)));
  select.value = value;
  select.addEventListener("change", () => change(select.value));
  return make("div", { class: "field" }, make("label", { for: id }, name), select);
}

/** A slider with its name before and its value after it. */
export function makeSlider(name, { min, max, step, value, format, change, key }) {
  const id = makeId("slider");
  const output = make("output", { for: id }, format(value));
  const input = make("input", { type: "range", id, min, max, step, "data-key": key, "aria-valuetext": format(value) });
  input.value = value;
  input.addEventListener("input", () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    change(Number(input.value));
  });
  return make("div", { class: "slider" }, make("label", { for: id }, name), input, output);
}

/** Words for a screen reader, without moving anything on the page. */
export function announce(words) {
  find("announcer").textContent = words;
}
