// Scores to colours, with the tables and the limits of the static pages (show/colours.py, show/overlay.py).

export const LEVELS = 20; // CSS classes on each side of zero: f0-f20, a0-a20, u0-u20

/** The CSS class of a word: f for, a against, u unsigned. */
export function chooseLevel(score, [low, high], signed) {
  if (signed) {
    const share = high > 0 ? score / high : 0;
    return (share < 0 ? "a" : "f") + Math.round(Math.min(Math.abs(share), 1) * LEVELS);
  }
  const share = high > low ? (score - low) / (high - low) : 0;
  return `u${Math.round(Math.min(Math.max(share, 0), 1) * LEVELS)}`;
}

/** The colour limits of words: special tokens often score highest and would make all words pale. */
export function findWordLimits(chips, signed) {
  const ordinary = chips.filter((chip) => !chip.special);
  const scores = (ordinary.length ? ordinary : chips).map((chip) => chip.score).filter(Number.isFinite);
  if (!scores.length) return [0, 0];
  if (!signed) return [Math.min(0, ...scores), Math.max(...scores)];
  const most = Math.max(...scores.map(Math.abs));
  return [-most, most];
}

/** The colour limits of a map: the 99th percentile, so that a few extreme patches do not make all others pale. */
export function findMapLimits(scores, signed, percentile = 0.99) {
  const values = [...scores].filter(Number.isFinite).map((value) => (signed ? Math.abs(value) : value));
  if (!values.length) return [0, 0];
  values.sort((a, b) => a - b);
  const [low, high] = [quantile(values, 1 - percentile), quantile(values, percentile)];
  if (signed) return [-(high || values.at(-1)), high || values.at(-1)];
  return high > low ? [low, high] : [values[0], values.at(-1)];
}

function quantile(sorted, share) {
  const at = share * (sorted.length - 1), left = Math.floor(at);
  return sorted[left] + (sorted[Math.min(left + 1, sorted.length - 1)] - sorted[left]) * (at - left);
}

/** A score as a share of its colour limit, 0 to 1. */
export function measureStrength(score, [low, high], signed) {
  if (!(high > low)) return 0;
  return Math.min(Math.max(signed ? Math.abs(score) / high : (score - low) / (high - low), 0), 1);
}

/** The colour of a score: [red, green, blue] from a table of the server. */
export function pickColour(table, score, [low, high], signed) {
  const middle = signed ? 0.5 : 0;
  const share = high > low ? (score - low) / (high - low) : middle;
  return table[Math.round(Math.min(Math.max(share, 0), 1) * (table.length - 1))];
}
