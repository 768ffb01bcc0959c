"""What must not be seen: each check takes what a browser or a terminal shows and gives the faults, in words.

find_page_faults(view, source)      a page opened in a Browser, and its file as text
find_text_faults(text)              what stands on a terminal, or what a page shows as text
"""

import re

from screens.browser import View

from whyformer.show.colours import make_colour_table

WIDTHS = (390, 768, 1440)  # pixels: a phone, a tablet, a desk
SCHEMES = ("light", "dark")

ESCAPES = re.compile(r"\x1b|\\x1b|\\u001b|\\033|\u241b|(?<![\w\[])\[\d{1,3}(?:;\d{1,3})*m|(?<![:\\])\\n")
NOT_A_NUMBER = re.compile(r"(?<![\w.])[+-]?nan(?![\w.])", re.IGNORECASE)
MACHINE_PATH = re.compile(
    r"(?:file://|(?<![\w.:/<])/(?:home|root|tmp|work|usr|var|opt|mnt|srv|Users|private)/)[^\s\"'<>]*"
)
MINUS_ZERO = re.compile(r"(?<![\w.,])[-\u2212]0(?:\.0+)?(?![\w.,]?\d|[eE\w])")
INSIDE = ("file:", "data:", "blob:", "about:")
PATTERNS = {"literal escape codes": ESCAPES, "not a number": NOT_A_NUMBER, "minus zero": MINUS_ZERO}
SIGNED_WORDS = re.compile(r"\b(?:orange|blue)\b", re.IGNORECASE)

# Runs in the page. `light` has the first and last colour of maps: [unsigned, signed].
MEASURE = """
(async (light) => {
  const faults = [], shown = (e) => e.checkVisibility ? e.checkVisibility() : e.offsetParent !== null;
  const name = (e) => `${e.localName}${e.className && e.className.baseVal === undefined ? "." + e.className : ""}`;
  const pause = (time) => new Promise((done) => setTimeout(done, time));
  const all = (which, from) => [...(from || document).querySelectorAll(which)];
  for (const image of all("img")) image.loading = "eager";
  await Promise.all(all("img").map((image) => Promise.race([image.decode().catch(() => 0), pause(3000)])));
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) faults.push(`the page is ${wide} px wide in a window of ${innerWidth} px`);
  for (const box of all("body *")) {
    const style = getComputedStyle(box);
    if (!shown(box) || !["auto", "scroll", "hidden", "clip"].includes(style.overflowX)) continue;
    const signed = style.textOverflow === "ellipsis" || (style.backgroundAttachment.includes("local")
      && style.backgroundImage.includes("gradient"));
    if (box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 0 && !signed)
      faults.push(`${name(box)} is cut without a sign: ${box.scrollWidth} px in ${box.clientWidth}`);
  }
  for (const drawing of all("svg.drawing").filter(shown)) {
    const frame = drawing.getBoundingClientRect();
    for (const text of all("text", drawing)) {
      const box = text.getBoundingClientRect();
      if (box.width && (box.left < frame.left - 3 || box.right > frame.right + 3))
        faults.push(`a chart cuts its text: ${text.textContent.slice(0, 60)}`);
    }
  }

  const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).slice(0, 3).map(Number);
  const apart = (a, b) => Math.hypot(...a.map((value, i) => value - b[i]));
  const ends = (bar) => {
    const stops = getComputedStyle(bar).backgroundImage.match(/rgba?\\([^)]*\\)/g) || [];
    return stops.length ? [numbers(stops[0]), numbers(stops[stops.length - 1])] : null;
  };
  const hues = async (image) => {  // how many pixels of a map are purple, and how many orange or blue
    const side = 48, canvas = new OffscreenCanvas(side, side), pen = canvas.getContext("2d");
    pen.drawImage(image, 0, 0, side, side);
    const pixels = pen.getImageData(0, 0, side, side).data, count = { u: 0, s: 0 };
    for (let i = 0; i < pixels.length; i += 4) {
      const [r, g, b] = pixels.slice(i, i + 3);
      if (Math.max(r, g, b) - Math.min(r, g, b) < 45) continue;
      count[b > g && r > g && b > r * 0.8 ? "u" : "s"] += 1;
    }
    return count;
  };
  for (const bar of all(".legend .bar").filter(shown)) {
    const kind = bar.classList.contains("bar-s") ? "s" : "u", colours = ends(bar);
    if (!colours) { faults.push("a colour bar has no colours"); continue; }
    let map = bar.closest(".legend").previousElementSibling;
    while (map && !map.matches(".text, .maps") && !map.querySelector("mark, img")) map = map.previousElementSibling;
    if (!map) continue;
    const images = all("figure.map img", map);
    for (const image of images) {
      const count = await hues(image);
      if (Math.max(count.u, count.s) > 20 && (count.u > count.s ? "u" : "s") !== kind)
        faults.push(`${kind === "s" ? "a signed" : "an unsigned"} legend stands under a map with ${count.u} purple and `
          + `${count.s} orange or blue pixels`);
      const wanted = light[kind === "s" ? 1 : 0];
      if (apart(colours[0], wanted[0]) > 12 || apart(colours[1], wanted[1]) > 12)
        faults.push(`the legend runs from ${colours[0]} to ${colours[1]}, its map from ${wanted[0]} to ${wanted[1]}`);
    }
    for (const mark of images.length ? [] : all("mark", map)) {
      const level = /(?:^| )([fau])(\\d+)(?: |$)/.exec(mark.className);
      if (!level || Number(level[2]) < 16) continue;
      if ((level[1] === "u" ? "u" : "s") !== kind) faults.push(`a mark ${level[0].trim()} over a legend ${kind}`);
      const own = numbers(getComputedStyle(mark).backgroundColor), at = level[1] === "a" ? 0 : 1;
      if (apart(own, colours[at]) > apart(own, colours[1 - at]))
        faults.push(`a mark ${level[0].trim()} has the colour of the other end of its legend`);
    }
  }
  const images = await Promise.all(all("figure.map img").filter(shown).map(hues));
  const inline = "mark[style*='rgba(191,77,0'], mark[style*='rgba(0,114,178']";
  const signed = all(".bar-s, [class^=f], [class^=a], canvas, svg.drawing, " + inline).length > 0
    || images.some((count) => count.s > count.u);
  return { faults, signed, text: document.body.innerText, maps: images.length };
})(LIGHT)
"""


def find_page_faults(view: View, source: str) -> list[str]:
    """Everything that is wrong with a page as it is shown."""
    tables = [make_colour_table(signed).tolist() for signed in (False, True)]
    light = str([[table[0], table[-1]] for table in tables])
    found = view.evaluate(MEASURE.replace("LIGHT", light))
    faults = list(found["faults"]) + find_text_faults(found["text"])
    if SIGNED_WORDS.search(found["text"]) and not found["signed"]:
        faults.append("the page speaks of orange and blue, and has neither")
    faults += [f"console: {message}" for message in view.messages]
    faults += [f"request outside: {url}" for url in find_outside_requests(view)]
    faults += [f"path of the machine: {path[:120]}" for path in set(MACHINE_PATH.findall(source))]
    return list(dict.fromkeys(faults))


def find_outside_requests(view: View) -> list[str]:
    """What the page asked for besides itself."""
    others = view.requests[1:]
    return [url for url in others if not url.startswith(INSIDE) or url.startswith("file:")]


def find_text_faults(text: str) -> list[str]:
    """Codes that should have been carried out, and numbers that are none: how many, and the first."""
    faults = []
    for what, pattern in PATTERNS.items():
        if found := list(pattern.finditer(text)):
            around = text[max(0, found[0].start() - 20) : found[0].end() + 20]
            faults.append(f"{what}: {len(found)}, the first in {around!r}")
    return faults
