// Numbers and names in words, as the static pages write them (show/wording.py, show/visible.py).

const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;
const LETTER = /[\p{Lo}\p{Mn}\p{Mc}\p{So}\p{Sk}]/u;
const JOINERS = new Set(["\u200c", "\u200d"]);

/** The text with control and invisible characters spelled out; line breaks stay. */
export function makeVisible(text) {
  if (!/[^\n\P{C}]|[\p{Zl}\p{Zp}]/u.test(text)) return text;
  const letters = [...text];
  return letters.map((letter, i) => {
    if (letter === "\n" || !UNPRINTABLE.test(letter)) return letter;
    const joins = JOINERS.has(letter) && LETTER.test(letters[i - 1] ?? "") && LETTER.test(letters[i + 1] ?? "");
    return joins ? letter : spellOut(letter);
  }).join("");
}

function spellOut(letter) {
  const named = { "\t": "\\t", "\r": "\\r" }[letter];
  if (named) return named;
  const code = letter.codePointAt(0);
  const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
  return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
}

/** A score with three significant digits; signed scores carry their sign. */
export function formatScore(score, signed, digits = 3) {
  if (score === null || Number.isNaN(score)) return "–";
  const text = String(Number(score.toPrecision(digits)) || 0);
  return (signed && !text.startsWith("-") ? "+" : "") + text;
}

/** A probability such as "80.6 %"; never rounded to a certainty that the model does not have. */
export function formatProbability(probability) {
  if (probability === null || probability === undefined || Number.isNaN(probability)) return "–";
  const percent = probability * 100;
  if (percent > 0 && percent < 0.05) return "< 0.1 %";
  if (percent < 100 && percent >= 99.95) return "> 99.9 %";
  return `${percent.toFixed(1)} %`;
}

/** How far a probability moved, in percentage points: "+3.2 points", or "no change". */
export function formatChange(after, before) {
  if (after === null || before === null || after === undefined || before === undefined) return "";
  const points = (after - before) * 100;
  if (Math.abs(points) < 0.05) return "no change";
  return `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)} points`;
}

export function formatShare(share) {
  return `${Math.round(share * 100)} %`;
}

export function capitalise(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function shorten(text, most) {
  const letters = [...text];
  return letters.length <= most ? text : `${letters.slice(0, most - 1).join("").trimEnd()}…`;
}

/** "1 word", "3 words", "2 patches". */
export function count(number, noun) {
  const plural = /(s|ch|x)$/.test(noun) ? `${noun}es` : `${noun}s`;
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

export function joinNames(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
