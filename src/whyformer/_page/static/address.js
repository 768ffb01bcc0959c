// The view in the address: what was chosen, never what was uploaded or typed.
//
//     #model=pets&method=rollout&target=Bengal&smooth=1

const KEYS = new Set([
  "model", "method", "target", "versus", "unit", "strength", "smooth", "signed", "sample", "fill", "tab",
]);

/** The settings that an address holds; unknown keys are left out. */
export function readAddress(hash) {
  const found = {};
  for (const [key, value] of new URLSearchParams(hash.replace(/^#/, ""))) if (KEYS.has(key)) found[key] = value;
  return found;
}

/** The address of these settings; empty values are left out. */
export function writeAddress(settings) {
  const kept = Object.entries(settings).filter(([key, value]) => KEYS.has(key) && value !== "" && value !== null && value !== undefined);
  kept.sort(([a], [b]) => [...KEYS].indexOf(a) - [...KEYS].indexOf(b));
  return `#${new URLSearchParams(kept.map(([key, value]) => [key, String(value)]))}`;
}
