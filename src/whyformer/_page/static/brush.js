// Paint to hide: a mask of cells over what the model sees.

export const SIDE = 64; // cells of the mask along each side of the model's view

export function makeMask(side = SIDE) {
  return { rows: side, columns: side, cells: new Uint8Array(side * side) };
}

/** Cover a disc around (x, y), in shares of the view, by `value`. True if a cell changed. */
export function dab(mask, x, y, radius, value = 1) {
  let changed = false;
  for (let row = 0; row < mask.rows; row++)
    for (let column = 0; column < mask.columns; column++) {
      const distance = Math.hypot((column + 0.5) / mask.columns - x, (row + 0.5) / mask.rows - y);
      const at = row * mask.columns + column;
      if (distance > radius || mask.cells[at] === value) continue;
      mask.cells[at] = value;
      changed = true;
    }
  return changed;
}

/** Dabs along a line, close enough to leave no gap. */
export function stroke(mask, from, to, radius, value = 1) {
  const steps = Math.max(1, Math.ceil(Math.hypot(to[0] - from[0], to[1] - from[1]) / Math.max(radius / 2, 0.005)));
  let changed = false;
  for (let i = 0; i <= steps; i++) {
    const share = i / steps;
    changed = dab(mask, from[0] + (to[0] - from[0]) * share, from[1] + (to[1] - from[1]) * share, radius, value) || changed;
  }
  return changed;
}

/** The mask of a set of patches of a grid. */
export function maskPatches(patches, rows, columns) {
  const mask = { rows, columns, cells: new Uint8Array(rows * columns) };
  for (const patch of patches) mask.cells[patch] = 1;
  return mask;
}

export function measureMask(mask) {
  return mask.cells.reduce((sum, cell) => sum + cell, 0) / mask.cells.length;
}

/** As the server reads it: one character for each cell. */
export function writeMask({ rows, columns, cells }) {
  return { rows, columns, cells: cells.join("") };
}
