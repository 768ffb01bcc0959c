// Where an answer comes from: pure parts.

/** The characters of the answer that each of its units covers, found one after the other: [{ start, stop }]. */
export function locateUnits(answer, units) {
  const letters = [...answer];
  let at = 0;
  return units.map((unit) => {
    const wanted = [...unit.text];
    for (let start = at; start + wanted.length <= letters.length && wanted.length; start++) {
      if (!wanted.every((letter, i) => letters[start + i] === letter)) continue;
      at = start + wanted.length;
      return { start, stop: at };
    }
    return { start: at, stop: at };
  });
}

/** The span of a selection of units, in characters of the answer; null for all of it or for nothing. */
export function joinSpan(located, [first, last]) {
  const chosen = located.slice(first, last + 1).filter(({ start, stop }) => stop > start);
  if (!chosen.length || (first === 0 && last === located.length - 1)) return null;
  return { start: chosen[0].start, stop: chosen.at(-1).stop };
}

/**
 * The prompt in order: one block for each source and each part apart, and one for what is between them. Pieces without
 * text, such as line breaks, belong to the block before them and are left out at its end.
 * Blocks: { source or null, units: indices }.
 */
export function cutPrompt(units, sources, promptUnits) {
  const ordered = [...sources].filter((source) => source.start !== null && source.start !== undefined).sort((a, b) => a.start - b.start || b.end - a.end);
  const blocks = [];
  for (const i of promptUnits) {
    const unit = units[i], last = blocks.at(-1);
    const source = unit.start === null ? last?.source ?? null : ordered.find((each) => unit.start < each.end && unit.end > each.start) ?? null;
    if (last && last.source === source) last.units.push(i);
    else blocks.push({ source, units: [i] });
  }
  for (const block of blocks) while (block.units.length && units[block.units.at(-1)].start === null) block.units.pop();
  return blocks.filter((block) => block.units.length);
}

/** Indices of the units of the answer, and of the rest. */
export function splitAnswer(units, regions) {
  const answers = regions.filter((region) => region.kind === "answer");
  const isAnswer = (unit) => unit.tokens.length > 0 && answers.some(({ start, stop }) => unit.tokens[0] >= start && unit.tokens[0] < stop);
  const [inside, outside] = [[], []];
  units.forEach((unit, i) => (isAnswer(unit) ? inside : outside).push(i));
  return { answer: inside, prompt: outside };
}

/** An explanation of an answer in the form of a citation: words with scores, but no sources; `why` says why not. */
export function describeWords({ text, units, regions, maps: [map], code }, why) {
  const first = units.token.find((unit) => unit.start !== null && splitAnswer([unit], regions).answer.length);
  const letters = [...text], from = first ? first.start : letters.length;
  const { scores, scale, signed, method, notes = [] } = map;
  return {
    answer: letters.slice(from).join(""), prompt_text: letters.slice(0, from).join(""), sources: [], apart: [], reading: null,
    units, regions, scores, scale, signed, method, code, notes: [why, ...notes],
  };
}

/** "passage 1 and passage 3". */
export function nameWithout(passages, without) {
  const names = passages.filter((passage) => without.has(passage.index)).map((passage) => passage.name);
  return names.length < 3 ? names.join(" and ") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
