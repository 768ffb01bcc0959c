// The image and its map, and a brush over them.

import { dab, makeMask, maskPatches, measureMask, stroke, writeMask } from "./brush.js";
import { findMapLimits } from "./colours.js";
import { announce, fill, make, makeButton, makeChoice, makeSlider } from "./dom.js";
import { makeDropZone } from "./drop_zone.js";
import { makeFillChoice } from "./fill_choice.js";
import { makeLegend } from "./legend.js";
import { DEFAULT_STRENGTH, drawMap } from "./map.js";
import { formatShare } from "./wording.js";

const LONGEST_SIDE = 640; // pixels of the canvas
const SMALL_SIDE = 240;

/** hide(hidden): what the brush covers, or null. open(file), openSample(i): another image. change(settings): the looks. */
export function makeImageStage(desk, { open, openSample, hide, change }, settings) {
  const looks = {
    strength: settings.strength === undefined ? DEFAULT_STRENGTH : Number(settings.strength),
    smooth: settings.smooth === "1",
    signed: settings.signed !== "0",
  };
  const fills = desk.model.fills ?? [];
  let fillName = fills.some((each) => each.name === settings.fill) ? settings.fill : fills[0]?.name;
  let image = null, size = null, map = null, mask = makeMask(), shownMask = null, isErasing = false, radius = 0.09, cursor = [0.5, 0.5];

  const picture = make("canvas", { class: "picture", width: 1, height: 1 });
  const cover = make("canvas", {
    class: "cover", width: 1, height: 1, tabindex: 0, role: "application",
    "aria-roledescription": "image to paint on", "aria-describedby": "brush-help", "data-key": "cover",
  });
  const frame = make("div", { class: "frame" }, picture, cover);
  const legend = make("div", { class: "legend-place" });
  const tools = make("div", { class: "tools" });
  const help = make("p", { class: "dim hint", id: "brush-help" },
    "Paint over the image to hide that part and watch the answer move. With the keyboard: arrow keys move the brush, Space paints, Delete clears.");
  const zone = makeDropZone(desk, { open, openSample });
  const work = make("div", { class: "image-work", hidden: true }, frame, legend, tools, help);
  const element = make("div", { class: "image-stage" }, zone.element, work);

  function showImage(opened, bitmap) {
    image = bitmap;
    size = opened;
    map = null;
    const factor = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
    for (const canvas of [picture, cover]) {
      canvas.width = Math.max(1, Math.round(bitmap.width * factor));
      canvas.height = Math.max(1, Math.round(bitmap.height * factor));
    }
    frame.style.setProperty("--ratio", `${picture.width} / ${picture.height}`);
    work.hidden = false;
    zone.shrink();
    clear();
    showTools();
    redraw();
  }

  function show(answer, shown) {
    const { view, width, height } = answer.image;
    map = shown && {
      rows: shown.scores.length, columns: shown.scores[0].length, scores: shown.scores.flat(), signed: shown.signed, scale: shown.scale,
      frame: { left: view.left / width, top: view.top / height, right: view.right / width, bottom: view.bottom / height },
    };
    picture.setAttribute("aria-label", shown ? `Map of ${shown.method} for ${shown.target.label}` : "The image");
    cover.setAttribute("aria-label", `The image, ${width} by ${height} pixels. ${describeStrongest()}`);
    showTools();
    redraw();
  }

  function describeStrongest() {
    if (!map) return "";
    const best = map.scores.reduce((most, score, i) => (Math.abs(score) > Math.abs(map.scores[most]) ? i : most), 0);
    return `The strongest patch is in row ${Math.floor(best / map.columns) + 1} and column ${(best % map.columns) + 1} of ${map.rows} by ${map.columns}.`;
  }

  function redraw() {
    if (!image) return;
    drawMap(picture, image, map, colour(map));
    fill(legend, map && makeLegend(colour(map).limits, colour(map).signed, { ofImage: true }));
    drawCover();
  }

  const colour = (drawn) => colourMap(drawn, looks, desk.colours);

  function drawCover() {
    const pen = cover.getContext("2d");
    pen.clearRect(0, 0, cover.width, cover.height);
    const hidden = shownMask ?? mask;
    if (map && hidden.cells.some(Boolean)) coverCells(pen, hidden);
    if (map && document.activeElement === cover && cover.matches(":focus-visible")) drawCursor(pen);
  }

  /** Draw the fill over the hidden cells, so that the reader sees about what the model sees. */
  function coverCells(pen, hidden) {
    const { left, top, right, bottom } = map.frame;
    pen.save();
    pen.beginPath();
    const [cellWidth, cellHeight] = [(right - left) * cover.width / hidden.columns, (bottom - top) * cover.height / hidden.rows];
    hidden.cells.forEach((cell, i) => {
      if (!cell) return;
      const [column, row] = [i % hidden.columns, Math.floor(i / hidden.columns)];
      pen.rect(left * cover.width + column * cellWidth - 0.3, top * cover.height + row * cellHeight - 0.3, cellWidth + 0.6, cellHeight + 0.6);
    });
    pen.clip();
    if (fillName === "blur") {
      pen.filter = `blur(${Math.round(cover.width / 14)}px)`;
      pen.drawImage(image, 0, 0, cover.width, cover.height);
    } else {
      pen.fillStyle = fillName === "black" ? "#000" : "#808080";
      pen.fillRect(0, 0, cover.width, cover.height);
    }
    pen.restore();
  }

  function drawCursor(pen) {
    const { left, top, right, bottom } = map.frame;
    pen.beginPath();
    pen.ellipse((left + cursor[0] * (right - left)) * cover.width, (top + cursor[1] * (bottom - top)) * cover.height,
      radius * (right - left) * cover.width, radius * (bottom - top) * cover.height, 0, 0, 7);
    for (const [style, line] of [["#fff", 4], ["#000", 2]]) {
      pen.strokeStyle = style;
      pen.lineWidth = line;
      pen.stroke();
    }
  }

  // --- the brush ---

  function tellHidden() {
    shownMask = null;
    drawCover();
    const isEmpty = !mask.cells.some(Boolean);
    hide(isEmpty ? null : { fill: fillName, mask: writeMask(mask) });
    frame.classList.toggle("painted", !isEmpty);
  }

  function clear() {
    mask = makeMask();
    shownMask = null;
    drawCover();
  }

  function toView(event) {
    const box = cover.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    const { left, top, right, bottom } = map.frame;
    return [(x - left) / (right - left), (y - top) / (bottom - top)];
  }

  let last = null;
  cover.addEventListener("pointerdown", (event) => {
    if (!map || event.button !== 0) return;
    event.preventDefault();
    cover.setPointerCapture(event.pointerId);
    last = toView(event);
    if (dab(mask, ...last, radius, isErasing ? 0 : 1)) tellHidden();
  });
  cover.addEventListener("pointermove", (event) => {
    if (!last) return;
    const here = toView(event);
    if (stroke(mask, last, here, radius, isErasing ? 0 : 1)) tellHidden();
    last = here;
  });
  for (const name of ["pointerup", "pointercancel"]) cover.addEventListener(name, () => { last = null; });
  cover.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!map || event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves) {
      cursor = cursor.map((at, i) => Math.min(Math.max(at + moves[i] / Math.max(map.columns, 8), 0), 1));
      drawCover();
    } else if (event.key === " ") {
      if (dab(mask, ...cursor, radius, isErasing ? 0 : 1)) tellHidden();
      announce(`${formatShare(measureMask(mask))} of the image hidden`);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      clear();
      tellHidden();
    } else return;
    event.preventDefault();
  });
  cover.addEventListener("focus", drawCover);
  cover.addEventListener("blur", drawCover);

  // --- the looks ---

  function setLook(name, value) {
    looks[name] = value;
    change({ strength: looks.strength === DEFAULT_STRENGTH ? null : looks.strength, smooth: looks.smooth ? "1" : null, signed: looks.signed ? null : "0" });
    redraw();
  }

  function showTools() {
    const isSigned = map?.signed ?? true;
    fill(tools,
      make("div", { class: "tool-group", role: "group", "aria-label": "How the map looks" },
        makeSlider("Strength", { min: 0, max: 1, step: 0.05, value: looks.strength, format: formatShare, key: "strength", change: (value) => setLook("strength", value) }),
        makeChoice("Detail", [["patches", "Patches"], ["smooth", "Smooth"]], looks.smooth ? "smooth" : "patches", (value) => setLook("smooth", value === "smooth")),
        isSigned && makeChoice("Sign", [["signed", "For and against"], ["size", "Size only"]], looks.signed ? "signed" : "size", (value) => setLook("signed", value === "signed"))),
      make("div", { class: "tool-group", role: "group", "aria-label": "The brush that hides" },
        makeChoice("Brush", [["hide", "Hide"], ["erase", "Bring back"]], isErasing ? "erase" : "hide", (value) => { isErasing = value === "erase"; }),
        makeSlider("Size", { min: 0.03, max: 0.25, step: 0.01, value: radius, format: (value) => formatShare(2 * value), key: "size", change: (value) => { radius = value; } }),
        makeFillChoice(fills, fillName, (chosen) => {
          fillName = chosen;
          change({ fill: fillName === fills[0].name ? null : fillName });
          if (mask.cells.some(Boolean)) tellHidden();
          else drawCover();
        }),
        makeButton("Show all again", () => { clear(); tellHidden(); }, { "data-key": "clear" })));
  }

  /** The hidden part of a list of patches (null: nothing), drawn over the image. */
  function hideUnits(patches) {
    if (mask.cells.some(Boolean)) mask = makeMask();
    shownMask = patches && maskPatches(patches, map.rows, map.columns);
    drawCover();
    return patches && { fill: fillName, patches };
  }

  function drawSmall(answer, shown) {
    const factor = Math.min(1, SMALL_SIDE / Math.max(image.width, image.height));
    const canvas = make("canvas", {
      width: Math.max(1, Math.round(image.width * factor)), height: Math.max(1, Math.round(image.height * factor)),
      role: "img", "aria-label": `Map of ${shown.method} for ${shown.target.label}`,
    });
    const { view, width, height } = answer.image;
    const drawn = {
      rows: shown.scores.length, columns: shown.scores[0].length, scores: shown.scores.flat(), signed: shown.signed, scale: shown.scale,
      frame: { left: view.left / width, top: view.top / height, right: view.right / width, bottom: view.bottom / height },
    };
    drawMap(canvas, image, drawn, colour(drawn));
    return canvas;
  }

  return { element, unit: "patch", show, showImage, hideUnits, clear, drawSmall, zone, get thumbnail() { return picture.toDataURL("image/jpeg", 0.7); }, get size() { return size; } };
}

/** The settings that a map is mixed with: signed as its method is, unless only the size is asked for. */
function colourMap(map, looks, tables) {
  if (!map) return { ...looks };
  const signed = map.signed && looks.signed;
  const limits = signed || !map.signed ? [map.scale.low, map.scale.high] : findMapLimits(map.scores.map(Math.abs), false);
  return { ...looks, signed, limits, table: signed ? tables.signed : tables.unsigned };
}
