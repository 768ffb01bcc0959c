// The server, asked: ask("explain", body, { signal, listen }) gives its answer or throws a ServerError in plain words.

import { makeEventReader } from "./events.js";

const ATTEMPTS = 4; // of a request that the server is too busy for
const LONGEST_WAIT = 5; // seconds between two of them

export class ServerError extends Error {
  constructor({ code, message, help = "" }, status = 0) {
    super(message);
    Object.assign(this, { code, help, status });
  }
}

const GONE = {
  code: "E_PAGE_OFFLINE",
  message: "The server does not answer.",
  help: "Check the terminal in which whyformer serve runs; start it again and reload this page with the new link.",
};
const CUT = {
  code: "E_PAGE_CUT",
  message: "The server stopped in the middle of an answer.",
  help: "Check the terminal in which whyformer serve runs, then try again.",
};

/** GET a JSON answer. */
export async function read(route) {
  const response = await reach(`/api/${route}`, {});
  return readAnswer(response);
}

/** POST an image; the answer names it by its content. */
export async function upload(bytes, signal) {
  const headers = { "Content-Type": "application/octet-stream" };
  return readAnswer(await reach("/api/image", { method: "POST", headers, body: bytes, signal }));
}

/** POST a question and listen to its progress; waits and asks again while the server is busy. */
export async function ask(route, body, { signal, listen = () => {} } = {}) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await askOnce(route, body, signal, listen);
    } catch (error) {
      const busy = error.code === "E_PAGE_BUSY" || error.code === "E_PAGE_LOADING" || error.status === 429;
      if (!busy || attempt === ATTEMPTS) throw error;
      listen("waiting", { seconds: error.wait });
      await pause(error.wait, signal);
    }
  }
}

async function askOnce(route, body, signal, listen) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  const response = await reach(`/api/${route}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  const isStream = (response.headers.get("Content-Type") ?? "").startsWith("text/event-stream");
  return response.ok && isStream ? followStream(response, signal, listen) : readAnswer(response);
}

async function reach(address, options) {
  try {
    return await fetch(address, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    throw options.signal?.aborted ? error : new ServerError(GONE);
  }
}

async function readAnswer(response) {
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new ServerError(response.ok ? CUT : { code: `HTTP ${response.status}`, message: "The server gave no readable answer." }, response.status);
  }
  if (response.ok) return answer;
  throw makeError(answer.error, response.status, Number(response.headers.get("Retry-After")));
}

function makeError(words, status, wait) {
  const error = new ServerError(words ?? GONE, status);
  error.wait = Math.min(wait > 0 ? wait : 1, LONGEST_WAIT);
  return error;
}

/** Read events until the result. */
async function followStream(response, signal, listen) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const split = makeEventReader();
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      throw signal?.aborted ? error : new ServerError(CUT);
    }
    if (piece.done) throw new ServerError(CUT);
    for (const { name, data } of split(piece.value)) {
      if (name === "result") return data;
      if (name === "error") throw makeError(data.error, data.status, data.retry_after);
      listen(name, data);
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("", "AbortError"));
    }, { once: true });
  });
}

export function isAborted(error) {
  return error?.name === "AbortError" || error?.code === "E_PAGE_CANCELLED";
}

/**
 * Questions of which only the newest counts: asking again ends the one before.
 *     const latest = makeLatest();
 *     const answer = await latest((signal) => ask("predict", body, { signal }));    null if it was overtaken
 */
export function makeLatest() {
  let running = null;
  const latest = async (question) => {
    running?.abort();
    const mine = (running = new AbortController());
    try {
      const answer = await question(mine.signal);
      return mine === running ? answer : null;
    } catch (error) {
      if (mine !== running || isAborted(error)) return null;
      throw error;
    } finally {
      if (mine === running) running = null;
    }
  };
  latest.stop = () => { running?.abort(); running = null; };
  return latest;
}
