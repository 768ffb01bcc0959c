// The workbench of models that read a text or a pair, and of language models asked for their next token.

import { makeTextStage } from "./text_stage.js";
import { makeWorkbench } from "./workbench.js";
import { shorten } from "./wording.js";

export function makeTextBench(desk, settings) {
  const bench = makeWorkbench(desk, (handlers) => makeTextStage(desk, { ...handlers, explain }, settings), settings);

  function explain(input, sample = null, given = {}) {
    if (!Object.values(input).some((text) => text.trim()))
      return bench.notice.fail({ code: "E_TXT_EMPTY", message: "There is no text to explain.", help: "Write one, or try a sample." });
    desk.setAddress({ sample });
    return bench.open(input, shorten(Object.values(input)[0], 40), given);
  }

  return {
    element: bench.element,
    describe() {
      const found = bench.describe();
      return found && { ...found, name: bench.view.title };
    },
    restore({ input = null, sample = null, choice = {} }) {
      const given = { target: choice.target ?? null, versus: choice.versus ?? null, ...(choice.method ? { method: choice.method } : {}) };
      const found = input ?? desk.model.samples?.[sample]?.input;
      if (!found) return undefined;
      bench.stage.editor.set(found);
      return explain(found, input ? null : sample, given);
    },
    close: () => {},
  };
}
