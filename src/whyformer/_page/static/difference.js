// What changed between two texts, word by word: the longest common subsequence.

/** Words with their positions: [{ text, start, end }]. */
export function splitWords(text) {
  return [...text.matchAll(/\S+/gu)].map((match) => ({
    text: match[0],
    start: match.index,
    end: match.index + match[0].length,
  }));
}

/** Character ranges that only one of the texts has: { before: [[start, end], ...], after: [...] }. */
export function compareTexts(before, after) {
  const [left, right] = [splitWords(before), splitWords(after)];
  const kept = matchWords(left.map((word) => word.text), right.map((word) => word.text));
  const [keptLeft, keptRight] = [new Set(kept.map(([i]) => i)), new Set(kept.map(([, j]) => j))];
  const list = (words, keep) => words.filter((_, i) => !keep.has(i)).map((word) => [word.start, word.end]);
  return { before: list(left, keptLeft), after: list(right, keptRight) };
}

/** Pairs of indices of equal words, in order. Equal ends are cut off first, so that long texts stay fast. */
export function matchWords(left, right) {
  let head = 0;
  while (head < left.length && head < right.length && left[head] === right[head]) head += 1;
  let tail = 0;
  while (tail < Math.min(left.length, right.length) - head && left.at(-1 - tail) === right.at(-1 - tail)) tail += 1;
  const middle = matchMiddle(left.slice(head, left.length - tail), right.slice(head, right.length - tail));
  return [
    ...Array.from({ length: head }, (_, i) => [i, i]),
    ...middle.map(([i, j]) => [i + head, j + head]),
    ...Array.from({ length: tail }, (_, i) => [left.length - tail + i, right.length - tail + i]),
  ];
}

const MOST_CELLS = 4_000_000; // beyond it the middle counts as changed as a whole

function matchMiddle(left, right) {
  const width = right.length + 1;
  if (left.length * width > MOST_CELLS) return [];
  const longest = new Uint16Array((left.length + 1) * width);
  for (let i = left.length - 1; i >= 0; i--)
    for (let j = right.length - 1; j >= 0; j--)
      longest[i * width + j] = left[i] === right[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
  const pairs = [];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) pairs.push([i++, j++]);
    else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}

/** Whether a range of characters overlaps one of these ranges. */
export function isWithin(ranges, start, end) {
  return ranges.some(([from, to]) => start < to && end > from);
}
