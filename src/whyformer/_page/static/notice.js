// What the page is doing, and what went wrong, in one line of fixed height: nothing jumps.

import { isAborted } from "./api.js";
import { fill, make, makeButton } from "./dom.js";

const PATIENCE = 150; // milliseconds before the page says that it is busy

const AGAIN = new Set([401, 408, 409, 410, 429]); // of the refusals, those that may pass

export function makeNotice() {
  const line = make("div", { class: "busy-line" });
  const error = make("div", { class: "error", role: "alert", hidden: true });
  const element = make("div", { class: "notice" }, error);
  let words = "", running = 0, timer = 0, stopIt = null;

  function showBusy(progress = "") {
    line.classList.toggle("busy", running > 0);
    fill(line, running > 0 && words ? [make("span", {}, `${words} … ${progress}`), stopIt && makeButton("Stop", stopIt, { class: "quiet", "data-key": "stop" })] : null);
  }

  /** Progress of the running question. */
  function listen(name, data) {
    if (name === "queued" && data.position > 0) showBusy(`${data.position} before it`);
    if (name === "waiting") showBusy("the server is busy");
    if (name === "progress") showBusy(data.total ? `${data.done} of ${data.total} ${data.what}` : `${data.done} ${data.what}`);
  }

  /** Ask, say so, and show an error with a way to try again. Gives null after an error. */
  async function during(what, question, again = null, stop = null) {
    running += 1;
    words = what || words;
    stopIt = stop;
    clearTimeout(timer);
    timer = setTimeout(showBusy, PATIENCE);
    try {
      const answer = await question();
      if (answer) hideError();
      return answer;
    } catch (found) {
      fail(found, again);
      return null;
    } finally {
      running -= 1;
      clearTimeout(timer);
      if (!running) words = "";
      showBusy();
    }
  }

  function fail(found, again = null) {
    if (isAborted(found)) return;
    if (!found.code) { console.error(found); found = { message: "This page made a mistake and could not go on.", help: "Reload it; if it happens again, please report it.", code: String(found) }; }
    if (found.status >= 400 && found.status < 500 && !AGAIN.has(found.status)) again = null; // it would be refused again
    error.hidden = false;
    fill(error, make("div", {}, make("strong", {}, found.message), found.help ? ` ${found.help}` : ""),
      make("div", { class: "row" }, again && makeButton("Try again", () => { hideError(); again(); }, { "data-key": "again" }),
        makeButton("Close", hideError, { class: "quiet", "data-key": "close" }), make("code", { class: "dim" }, found.code)));
  }

  function hideError() {
    error.hidden = true;
    error.replaceChildren();
  }

  return { element, line, during, listen, fail, hideError };
}
