// What a language model is asked: a prompt, a chat, or a prompt with its answer from a log.

import { fill, make, makeButton, makeChoice, makeId } from "./dom.js";

const ROLES = ["system", "user", "assistant"];

/** generate(input), explainLog(input): what the buttons do. */
export function makeComposer(desk, { generate, explainLog, openSample }) {
  const { model, limits } = desk;
  let kind = "prompt", messages = [{ role: "user", content: "" }];
  const id = makeId("prompt"), answerId = makeId("answer"), newId = makeId("new");
  const prompt = make("textarea", { id, rows: 9, spellcheck: "false", dir: "auto", "data-key": "prompt" });
  const answer = make("textarea", { id: answerId, rows: 3, spellcheck: "false", dir: "auto", "data-key": "log-answer" });
  const most = make("input", { type: "number", id: newId, min: 1, max: limits.new_tokens, value: Math.min(24, limits.new_tokens), class: "short", "data-key": "new-tokens" });
  const body = make("div", { class: "composer-body" });
  const actions = make("div", { class: "row" });
  const kinds = make("div");
  const samples = make("div", { class: "row samples" }, (model.samples ?? []).length ? make("span", { class: "dim" }, "Try this:") : null,
    (model.samples ?? []).map((sample, i) => makeButton(sample.title, () => openSample(i), { class: "quiet", "data-key": `sample-${i}` })));
  const element = make("div", { class: "editor composer" }, kinds, body, actions, samples);

  function show(isRunning = false) {
    const options = [["prompt", "Prompt"], ...(model.chat ? [["chat", "Chat"]] : []), ["log", "From a log"]];
    fill(kinds, makeChoice("Ask by", options, kind, (chosen) => { kind = chosen; show(); }));
    fill(body, kind === "chat" ? makeChat() : kind === "log" ? makeLog() : makePrompt());
    if (!isRunning) fill(actions, kind === "log"
      ? makeButton("Explain this answer", () => explainLog(readLog()), { class: "primary", "data-key": "send" })
      : [makeButton("Generate an answer", () => generate(read(), Number(most.value) || 1), { class: "primary", "data-key": "send" }),
        make("span", { class: "field" }, make("label", { for: newId }, "at most"), most, make("span", { class: "dim" }, "tokens"))]);
  }

  const makePrompt = () => make("div", {}, make("label", { for: id }, "Prompt"), prompt,
    make("p", { class: "dim hint" }, "Leave an empty line between passages, so that each can be left out."));

  const makeLog = () => make("div", {}, make("label", { for: id }, "Prompt, or a record of an API as JSON"), prompt,
    make("label", { for: answerId }, "Answer (empty if the record holds it)"), answer);

  function makeChat() {
    const rows = messages.map((message, i) => {
      const [roleId, textId] = [makeId("role"), makeId("message")];
      const role = make("select", { id: roleId, "aria-label": `Role of message ${i + 1}`, "data-key": `role-${i}` }, ROLES.map((name) => make("option", {}, name)));
      role.value = message.role;
      role.addEventListener("change", () => { message.role = role.value; });
      const text = make("textarea", { id: textId, rows: 2, "aria-label": `Text of message ${i + 1}`, spellcheck: "false", dir: "auto", "data-key": `message-${i}` });
      text.value = message.content;
      text.addEventListener("input", () => { message.content = text.value; });
      return make("div", { class: "message" }, role, text, makeButton("Remove", () => { messages.splice(i, 1); show(); }, { class: "quiet", "aria-label": `Remove message ${i + 1}`, "data-key": `remove-${i}` }));
    });
    return make("div", { class: "chat" }, rows, makeButton("Add a message", () => { messages.push({ role: "user", content: "" }); show(); }, { "data-key": "add" }));
  }

  const read = () => (kind === "chat" ? { messages: messages.filter((message) => message.content.trim()) } : { prompt: prompt.value });

  function readLog() {
    const record = parseRecord(prompt.value);
    return record && !answer.value.trim() ? { log: record } : { prompt: prompt.value, answer: answer.value };
  }

  function set(input) {
    kind = input.messages ? "chat" : input.log || typeof input.answer === "string" ? "log" : "prompt";
    if (input.messages) messages = input.messages.map((message) => ({ ...message }));
    prompt.value = input.prompt ?? (input.log ? JSON.stringify(input.log, null, 1) : "");
    answer.value = typeof input.answer === "string" ? input.answer : "";
    show();
  }

  show();
  return { element, show, set, read, get tokens() { return Number(most.value) || 1; } };
}

/** A pasted text as a JSON object, or null. */
export function parseRecord(text) {
  try {
    const found = JSON.parse(text);
    return found !== null && typeof found === "object" && !Array.isArray(found) ? found : null;
  } catch {
    return null;
  }
}

export function isEmpty(input) {
  return !(input.prompt ?? "").trim() && !(input.messages ?? []).length && !input.log;
}
