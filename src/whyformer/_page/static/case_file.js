// Cases as one file: what was asked and noted, with its input. Nothing of it is kept by the server.

export const FORMAT = "whyformer cases";
const VERSION = 1;
const MOST_CASES = 200;

/** The text of the file. */
export function writeCases(cases) {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, cases }, null, 1)}\n`;
}

/** The cases of a file; throws an Error with a plain sentence if it is none. */
export function readCases(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file is not a file of cases: it is not JSON.");
  }
  if (found?.format !== FORMAT || !Array.isArray(found.cases)) throw new Error("This file is not a file of cases of this page.");
  if (found.version !== VERSION) throw new Error(`This file has version ${found.version}; this page reads version ${VERSION}.`);
  if (found.cases.length > MOST_CASES) throw new Error(`This file has ${found.cases.length} cases; at most ${MOST_CASES} can be loaded.`);
  return found.cases.map(checkCase);
}

const TEXTS = ["name", "note", "title", "model", "kind", "when"];

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const INPUT = {
  image: isText, text: isText, second: isText, prompt: isText, log: isObject,
  answer: (value) => isText(value) || (Array.isArray(value) && value.every(Number.isInteger)),
  messages: (value) => Array.isArray(value) && value.every((one) => isObject(one) && isText(one.role) && isText(one.content)),
};

/** Whether it is an input as the page sends it; a file of somebody else may hold anything. */
function isInput(given) {
  return isObject(given) && Object.keys(given).length > 0 && Object.entries(given).every(([name, value]) => INPUT[name]?.(value));
}

/** What was chosen: a method, classes, a part of an answer; what is of another type is left out. */
function readChoice({ method, target, versus, span }) {
  const isTarget = (value) => isText(value) || Number.isInteger(value);
  return {
    ...(isText(method) ? { method } : {}), ...(isTarget(target) ? { target } : {}), ...(isTarget(versus) ? { versus } : {}),
    ...(isObject(span) && Number.isInteger(span.start) && Number.isInteger(span.stop) ? { span: { start: span.start, stop: span.stop } } : {}),
  };
}

/** A case with only the fields that this page knows, each of its type. */
function checkCase(given, i) {
  if (!isObject(given) || !isInput(given.input) || !isObject(given.request)) throw new Error(`Case ${i + 1} of this file is not complete.`);
  const texts = Object.fromEntries(TEXTS.map((key) => [key, typeof given[key] === "string" ? given[key] : ""]));
  const isPicture = (value) => typeof value === "string" && /^data:image\/(png|jpeg|webp|gif|bmp|tiff);base64,[A-Za-z0-9+/=]*$/.test(value);
  return {
    ...texts, input: given.input, request: given.request, choice: isObject(given.choice) ? readChoice(given.choice) : {},
    picture: isPicture(given.picture) ? given.picture : null, thumbnail: isPicture(given.thumbnail) ? given.thumbnail : null,
  };
}

/** Bytes as a data URL; in pieces, because one call takes only so many arguments. */
export function toDataUrl(bytes, type) {
  const all = new Uint8Array(bytes);
  let text = "";
  for (let i = 0; i < all.length; i += 0x8000) text += String.fromCharCode(...all.subarray(i, i + 0x8000));
  return `data:${type};base64,${btoa(text)}`;
}

export function fromDataUrl(address) {
  return Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (letter) => letter.charCodeAt(0));
}

/** The type of an image by its first bytes; the server looks for itself. */
export function nameType(bytes) {
  const [a, b, c] = new Uint8Array(bytes);
  if (a === 0xff && b === 0xd8) return "image/jpeg";
  if (a === 0x47 && b === 0x49 && c === 0x46) return "image/gif";
  if (a === 0x52 && b === 0x49) return "image/webp";
  if (a === 0x42 && b === 0x4d) return "image/bmp";
  if ((a === 0x49 && b === 0x49) || (a === 0x4d && b === 0x4d)) return "image/tiff";
  return "image/png";
}
