// A map of scores over its image: the mixing of show/overlay.py, on a canvas.
//
// A patch is drawn exactly over the pixels it was computed from. `frame` is what the model sees of the image, as shares
// of its width and height: { left, top, right, bottom }. Outside the frame the image is shown without a map.

import { measureStrength, pickColour } from "./colours.js";

export const DEFAULT_STRENGTH = 0.85;

/** The score at the centre of every pixel, and null outside the frame: one row after the other. */
export function sampleScores(grid, frame, width, height, smooth) {
  const across = locatePixels(width, frame.left, frame.right, grid.columns, smooth);
  const down = locatePixels(height, frame.top, frame.bottom, grid.rows, smooth);
  const sampled = new Array(width * height).fill(null);
  for (let y = 0; y < height; y++) {
    if (down[y] === null) continue;
    const [top, bottom, below] = down[y];
    for (let x = 0; x < width; x++) {
      if (across[x] === null) continue;
      const [left, right, beside] = across[x];
      const at = (row, column) => grid.scores[row * grid.columns + column];
      const upper = at(top, left) * (1 - beside) + at(top, right) * beside;
      const lower = at(bottom, left) * (1 - beside) + at(bottom, right) * beside;
      sampled[y * width + x] = upper * (1 - below) + lower * below;
    }
  }
  return sampled;
}

/** For each pixel of an axis the two cells it lies between and the share of the second; null outside the frame. */
function locatePixels(pixels, start, end, cells, smooth) {
  return Array.from({ length: pixels }, (_, i) => {
    const share = ((i + 0.5) / pixels - start) / (end - start);
    if (!(share >= 0 && share < 1)) return null;
    if (!smooth) {
      const cell = Math.min(Math.floor(share * cells), cells - 1);
      return [cell, cell, 0];
    }
    const at = Math.min(Math.max(share * cells - 0.5, 0), cells - 1), left = Math.min(Math.floor(at), Math.max(cells - 2, 0));
    return [left, Math.min(left + 1, cells - 1), at - left];
  });
}

/** Mix a map into pixels (RGBA bytes, in place): the image turns grey and light, the scores give the colour. */
export function mixMap(pixels, sampled, { table, limits, signed, strength = DEFAULT_STRENGTH }) {
  const faded = Math.min(1, strength * 2); // how far the image itself loses its colours
  for (let i = 0; i < sampled.length; i++) {
    const at = 4 * i, [red, green, blue] = [pixels[at], pixels[at + 1], pixels[at + 2]];
    const grey = 255 - (255 - (0.299 * red + 0.587 * green + 0.114 * blue)) * 0.82;
    const score = sampled[i];
    const share = score === null ? 0 : measureStrength(score, limits, signed);
    const alpha = score === null ? 0 : strength * (0.14 + 0.86 * Math.sqrt(share));
    const colour = score === null ? [0, 0, 0] : pickColour(table, score, limits, signed);
    for (const [c, value] of [red, green, blue].entries()) {
      const ground = value + (grey - value) * faded;
      pixels[at + c] = ground * (1 - alpha) + colour[c] * alpha;
    }
  }
}

/** Draw an image and a map over it into a canvas of its size. */
export function drawMap(canvas, image, map, settings) {
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  if (!map || !(settings.strength > 0)) return;
  const pixels = pen.getImageData(0, 0, canvas.width, canvas.height);
  const scores = settings.signed ? map.scores : map.scores.map(Math.abs);
  const sampled = sampleScores({ ...map, scores }, map.frame, canvas.width, canvas.height, settings.smooth);
  mixMap(pixels.data, sampled, settings);
  pen.putImageData(pixels, 0, 0);
  outlineFrame(pen, map.frame, canvas);
}

/** Frame what the model sees, unless it is the whole image. */
function outlineFrame(pen, { left, top, right, bottom }, { width, height }) {
  const most = 0.002;
  if (left < most && top < most && right > 1 - most && bottom > 1 - most) return;
  const box = [left * width + 1, top * height + 1, (right - left) * width - 2, (bottom - top) * height - 2];
  for (const [colour, line] of [["#fff", 3], ["#000", 1]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = line;
    pen.strokeRect(...box);
  }
}
