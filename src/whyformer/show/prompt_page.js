"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const data = JSON.parse(find("data").textContent);
  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  // --- stored numbers: rows of bytes in base64, decoded when they are needed (prompt_matrix.py) ---
  const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const total = new Float32Array(decode(data.total));
  function addRow(packed, row, into) {
    const narrow = packed.width === 1, raw = decode(packed.values[row]);
    const steps = narrow ? new Int8Array(raw) : new Int16Array(raw);
    const unit = packed.scales[row] / (narrow ? 127 : 32767);
    let places = null;
    if (packed.places) {
      const columns = decode(packed.places[row]);
      places = packed.placeWidth === 2 ? new Uint16Array(columns) : new Uint32Array(columns);
    }
    for (let i = 0; i < steps.length; i++) into[places ? places[i] : i] += steps[i] * unit;
  }
  function sumCells(tokens) {
    return Float64Array.from(data.cells, ([start, stop]) => {
      let sum = 0;
      for (let i = start; i < stop; i++) sum += tokens[i];
      return sum;
    });
  }

  // --- what stands on the page ---
  const answerMarks = [...document.querySelectorAll("#answer-text mark")];
  const marks = [...document.querySelectorAll("#prompt .text mark"), ...answerMarks];
  const firstAnswer = marks.length - answerMarks.length;  // chip
  const chipStart = (i) => (i < data.chips.length ? data.chips[i] : data.tokens);
  const isSpecial = (i) => (Number(data.flags[i]) & 1) === 1;
  const isGlued = (i) => (Number(data.flags[i]) & 2) === 2;  // no blank before it
  const chipRanges = data.cells.map(([start, stop]) => [lowerBound(start), lowerBound(stop)]);
  const sectionCount = Math.max(-1, ...data.cells.map((cell) => cell[2])) + 1;
  const summaries = [...document.querySelectorAll("#prompt summary")];
  const cellSummary = new Map(summaries.filter((s) => s.dataset.cell).map((s) => [Number(s.dataset.cell.slice(1)), s]));
  function lowerBound(token) {
    let low = 0, high = data.chips.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (data.chips[middle] < token) low = middle + 1; else high = middle;
    }
    return low;
  }
  function nameCell(cell) {
    const summary = cellSummary.get(cell);
    return summary ? summary.querySelector(".name").textContent : "earlier answer tokens";
  }
  const findAnchor = (cell) => (cellSummary.has(cell) ? "#" + cellSummary.get(cell).parentElement.id : "#answer");

  // --- the choice: the whole answer (null), a span of answer chips, or a hop ---
  let chosen = null, hop = null, anchor = 0, now = null;
  const rowsOf = ([first, last]) =>
    [chipStart(firstAnswer + first) - data.promptLength, chipStart(firstAnswer + last + 1) - data.promptLength];
  function readScores() {
    if (hop !== null) {
      const tokens = new Float32Array(decode(data.hops[hop]));
      return { tokens, cells: sumCells(tokens) };
    }
    if (chosen === null) return { tokens: total, cells: sumCells(total) };
    const tokens = new Float64Array(data.tokens), cells = new Float64Array(data.cells.length);
    const [first, stop] = rowsOf(chosen);
    for (let row = first; row < stop; row++) {
      addRow(data.steps, row, tokens);
      addRow(data.sums, row, cells);
    }
    return { tokens, cells };
  }
  function sumChips(tokens) {
    return Float64Array.from(marks, (_, i) => {
      let sum = 0;
      for (let t = chipStart(i); t < chipStart(i + 1); t++) sum += tokens[t];
      return sum;
    });
  }
  function findLimit(chips) {  // the largest magnitude of a word of the prompt, without one word in a thousand
    const ranked = chips.filter((_, i) => Number(data.flags[i]) & 4).map(Math.abs).sort();
    return ranked.length ? ranked[ranked.length - 1 - Math.floor(ranked.length / 1000)] : 0;
  }
  function chooseLevel(score, limit) {
    const share = limit > 0 ? score / limit : 0;
    const strength = data.signed ? Math.abs(share) : Math.max(share, 0);
    return (data.signed ? (share < 0 ? "a" : "f") : "u") + Math.round(Math.min(strength, 1) * data.levels);
  }
  const formatScore = (score) => (data.signed && score >= 0 ? "+" : "") + Number(score.toPrecision(3));
  function formatShare(share) {
    const digits = (100 * Math.abs(share)).toFixed(1), isZero = Number(digits) === 0;
    return (share < 0 && !isZero ? "-" : data.signed ? "+" : "") + digits + " %";
  }

  // --- the strongest words of a cell: the same as find_top_spans in prompt_view.py ---
  const [spanLength, spanShare, weakest] = data.span;
  function findTopSpans(cell, chips) {
    const [from, to] = chipRanges[cell], spans = [], taken = new Set();
    const ranked = [];
    for (let i = from; i < to; i++) if (!isSpecial(i)) ranked.push(i);
    ranked.sort((i, j) => Math.abs(chips[j]) - Math.abs(chips[i]) || i - j);
    for (const seed of ranked) {
      if (spans.length === 3 || Math.abs(chips[seed]) <= weakest * Math.abs(chips[ranked[0]])) break;
      if (taken.has(seed)) continue;
      const belongs = (i, sameWord) => i >= from && i < to && !taken.has(i) && !isSpecial(i) &&
        (sameWord || (chips[i] * chips[seed] > 0 && Math.abs(chips[i]) >= spanShare * Math.abs(chips[seed])));
      let first = seed, last = seed;
      while (last - first + 1 < spanLength && belongs(first - 1, isGlued(first))) first--;
      while (last - first + 1 < spanLength && belongs(last + 1, last + 1 < to && isGlued(last + 1))) last++;
      for (let i = first; i <= last; i++) taken.add(i);
      spans.push([first, last, chips[seed]]);
    }
    return spans;
  }
  function writeSpan(first, last) {
    let text = "";
    for (let i = first; i <= last; i++) text += (i > first && !isGlued(i) ? " " : "") + marks[i].textContent;
    return text.length > 60 ? text.slice(0, 57) + "..." : text;
  }

  // --- showing it ---
  function showShare(element, share) {
    const fill = element.querySelector(".fill");
    fill.style.width = (now.largest > 0 ? 100 * Math.abs(share) / now.largest : 0).toFixed(2) + "%";
    fill.className = "fill " + (data.signed ? (share < 0 ? "a14" : "f14") : "u12");
    element.querySelector(".share").textContent = formatShare(share);
  }
  function showSpans(summary, cell) {
    summary.querySelector(".top").replaceChildren(...findTopSpans(cell, now.chips).map(([first, last, score]) =>
      make("span", writeSpan(first, last), "mark " + chooseLevel(score, now.limit))));
  }
  function showRegions() {
    const magnitude = data.magnitude ?? now.cells.reduce((sum, value) => sum + Math.abs(value), 0);
    const shares = now.cells.map((value) => (magnitude > 0 ? value / magnitude : 0));
    const sections = new Float64Array(sectionCount), strongest = new Array(sectionCount).fill(-1);
    shares.forEach((share, i) => { sections[data.cells[i][2]] += share; });
    now.largest = Math.max(0, ...sections.map(Math.abs), ...shares.map(Math.abs));
    shares.forEach((share, i) => {
      const section = data.cells[i][2];
      if (strongest[section] < 0 || Math.abs(share) > Math.abs(shares[strongest[section]])) strongest[section] = i;
      if (cellSummary.has(i)) { showShare(cellSummary.get(i), share); showSpans(cellSummary.get(i), i); }
    });
    sections.forEach((share, section) => {
      const region = find("region-" + section);
      if (!region || region.firstElementChild.dataset.cell) return;
      showShare(region.firstElementChild, share);
      showSpans(region.firstElementChild, strongest[section]);
    });
    const ranked = [...shares.keys()].sort((i, j) => Math.abs(shares[j]) - Math.abs(shares[i]) || i - j);
    find("top-regions").replaceChildren(...ranked.slice(0, data.topRegions).map((cell) => {
      const row = make("li"), link = make("a", nameCell(cell)), track = make("span", undefined, "track");
      link.href = findAnchor(cell);
      track.append(make("span", undefined, "fill"));
      track.setAttribute("aria-hidden", "true");
      row.append(link, track, make("span", "", "share"));
      showShare(row, shares[cell]);
      return row;
    }));
    const strong = ranked.length ? ": most from " + nameCell(ranked[0]) + " (" + formatShare(shares[ranked[0]]) + ")" : "";
    find("chosen").textContent = "Chosen: " + nameChoice() + strong;
  }
  function nameChoice() {
    if (hop !== null) return document.querySelectorAll(".hop-name > span")[hop].textContent;
    if (chosen === null) return find("chosen").dataset.whole;
    const [first, last] = chosen, count = last - first + 1;
    const place = count === 1 ? "token " + (first + 1) : "tokens " + (first + 1) + " to " + (last + 1);
    return "\u201c" + writeSpan(firstAnswer + first, firstAnswer + last) + "\u201d (" + place + " of " + answerMarks.length + ")";
  }
  function show() {
    now = readScores();
    now.chips = sumChips(now.tokens);
    now.limit = findLimit(now.chips);
    marks.forEach((mark, i) => {
      const kind = chooseLevel(now.chips[i], now.limit) + (isSpecial(i) ? " special" : "");
      if (mark.className !== kind) mark.className = kind;
    });
    if (data.steps) answerMarks.forEach((mark, i) => {
      const selected = String(chosen !== null && i >= chosen[0] && i <= chosen[1]);
      if (mark.getAttribute("aria-selected") !== selected) mark.setAttribute("aria-selected", selected);
    });
    const limits = document.querySelectorAll("#origin .legend > span:not(.bar)");
    limits[0].textContent = data.signed ? formatScore(-now.limit) + " against" : "0";
    limits[1].textContent = formatScore(now.limit) + (data.signed ? " for" : "");
    find("reset").hidden = chosen === null && hop === null;
    showRegions();
    drawMatrix();
  }
  let waiting = false;
  function showSoon() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  }
  document.addEventListener("pointerover", (event) => {
    if (now === null || event.target.localName !== "mark") return;
    const i = marks.indexOf(event.target);
    if (i >= 0) event.target.title = formatScore(now.chips[i]);
  });

  // --- choosing ---
  function choose(first, last) {
    hop = null;
    chosen = first === null ? null : [Math.min(first, last), Math.max(first, last)];
    const hash = chosen === null ? "#answer" : "#span=" + (chosen[0] + 1) + "-" + (chosen[1] + 1);
    history.replaceState(null, "", hash);
    showSoon();
  }
  function makeChoosable() {
    const box = find("answer-text");
    box.setAttribute("role", "listbox");
    box.setAttribute("aria-multiselectable", "true");
    box.setAttribute("aria-label", "Answer tokens");
    answerMarks.forEach((mark, i) => {
      mark.setAttribute("role", "option");
      mark.tabIndex = i ? -1 : 0;
    });
    let dragging = false;
    const moveFocus = (i) => {
      answerMarks.forEach((mark) => { if (mark.tabIndex === 0) mark.tabIndex = -1; });
      answerMarks[i].tabIndex = 0;
      answerMarks[i].focus();
    };
    box.addEventListener("mousedown", (event) => {
      const i = answerMarks.indexOf(event.target);
      if (i < 0 || event.button !== 0) return;
      event.preventDefault();
      if (!event.shiftKey) anchor = i;
      dragging = true;
      moveFocus(i);
      choose(anchor, i);
    });
    box.addEventListener("mouseover", (event) => {
      const i = answerMarks.indexOf(event.target);
      if (dragging && i >= 0) choose(anchor, i);
    });
    window.addEventListener("mouseup", () => { dragging = false; });
    box.addEventListener("keydown", (event) => {
      const at = answerMarks.indexOf(document.activeElement);
      if (event.key === "Escape") { choose(null); return; }
      const last = answerMarks.length - 1;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last, " ": at, Enter: at }[event.key];
      if (to === undefined || at < 0) return;
      event.preventDefault();
      const next = Math.min(Math.max(to, 0), last);
      if (!event.shiftKey) anchor = next;
      moveFocus(next);
      choose(anchor, next);
    });
  }
  find("reset").addEventListener("click", () => choose(null));
  document.querySelectorAll(".show-hop").forEach((button, i) => {
    button.hidden = false;
    button.addEventListener("click", () => { chosen = null; hop = i; showSoon(); });
  });

  // --- links: a region opens before it is jumped to ---
  function openTarget(id) {
    let element = find(id);
    if (!element || element.localName !== "details") return;
    for (let each = element; each; each = each.parentElement) if (each.localName === "details") each.open = true;
    element.scrollIntoView();
  }
  function readAddress() {
    const span = /^#span=(\d+)-(\d+)$/.exec(location.hash), last = answerMarks.length - 1;
    if (span && data.steps && last >= 0) {
      const [first, second] = [span[1], span[2]].map((text) => Math.min(Math.max(Number(text) - 1, 0), last));
      anchor = first;
      choose(first, second);
    } else openTarget(location.hash.slice(1));
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#region-'],a[href^='#cell-']");
    if (link) setTimeout(() => openTarget(link.getAttribute("href").slice(1)));
  });
  window.addEventListener("hashchange", readAddress);

  // --- the matrix: chosen answer tokens by regions, or by the tokens of one region; drawn once it can be seen ---
  const canvas = find("matrix-canvas"), columns = find("columns");
  const MOST_COLUMNS = 1000, MOST_ROWS = 600;
  let inSight = false, drawn = null;
  function readMatrix() {
    const [first, last] = chosen || [0, answerMarks.length - 1], cell = columns.value === "" ? null : Number(columns.value);
    const rows = Math.max(last - first + 1, 0), rowStep = Math.ceil(rows / MOST_ROWS) || 1;
    const [from, to] = cell === null ? [0, data.cells.length] : chipRanges[cell];
    const columnStep = Math.ceil((to - from) / MOST_COLUMNS) || 1;
    const width = Math.ceil((to - from) / columnStep), height = Math.ceil(rows / rowStep);
    const values = new Float64Array(width * height);
    for (let row = 0; row < rows; row++) {
      const [start, stop] = rowsOf([first + row, first + row]);
      const line = new Float64Array(cell === null ? data.cells.length : data.tokens);
      for (let r = start; r < stop; r++) addRow(cell === null ? data.sums : data.steps, r, line);
      for (let c = from; c < to; c++) {
        let value = 0;
        if (cell === null) value = line[c];
        else for (let t = chipStart(c); t < chipStart(c + 1); t++) value += line[t];
        const place = Math.floor(row / rowStep) * width + Math.floor((c - from) / columnStep);
        if (Math.abs(value) > Math.abs(values[place])) values[place] = value;  // the strongest of those that share a pixel
      }
    }
    return { values, width, height, first, rowStep, from, columnStep, cell };
  }
  function readColours() {
    const probe = make("mark"), colours = {};
    document.body.append(probe);
    for (const letter of data.signed ? "fa" : "u")
      for (let level = 0; level <= data.levels; level++) {
        probe.className = letter + level;
        colours[letter + level] = (getComputedStyle(probe).backgroundColor.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
      }
    probe.remove();
    return colours;
  }
  function drawMatrix() {
    if (!canvas || !inSight || !data.steps) return;
    drawn = readMatrix();
    const { values, width, height } = drawn, colours = readColours();
    const limit = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    canvas.width = Math.max(width, 1);
    canvas.height = Math.max(height, 1);
    const image = new ImageData(canvas.width, canvas.height);
    values.forEach((value, i) => {
      const [red, green, blue, alpha = 1] = colours[chooseLevel(value, limit)];
      image.data.set([red, green, blue, 255 * alpha], 4 * i);
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
    const room = canvas.parentElement.clientWidth - 2;
    const side = (count, most) => Math.max(1, Math.min(24, Math.floor(most / Math.max(count, 1))));
    canvas.style.width = width * side(width, room) + "px";
    canvas.style.height = height * Math.max(side(height, 480), Math.min(8, Math.floor(480 / Math.max(height, 1)))) + "px";
    canvas.setAttribute("aria-label", height + " answer tokens by " + width + (drawn.cell === null ? " regions" : " tokens"));
  }
  function locate(event) {
    if (!drawn || !drawn.width) return null;
    const box = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * drawn.height);
    const column = Math.floor((event.clientX - box.left) / box.width * drawn.width);
    return row >= 0 && row < drawn.height && column >= 0 && column < drawn.width ? [row, column] : null;
  }
  if (canvas && data.steps) {
    new IntersectionObserver((entries) => {
      inSight = entries[entries.length - 1].isIntersecting;
      if (inSight && now === null) show();
      else if (inSight) drawMatrix();
    }).observe(canvas);
    columns.addEventListener("change", drawMatrix);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMatrix);
    canvas.addEventListener("pointermove", (event) => {
      const at = locate(event);
      if (!at) return;
      const [row, column] = at, { first, rowStep, from, columnStep, cell, values, width } = drawn;
      const answer = answerMarks[first + row * rowStep].textContent, place = from + column * columnStep;
      const other = cell === null ? columns.options[place + 1].textContent : "\u201c" + marks[place].textContent + "\u201d";
      find("pointed").textContent =
        "\u201c" + answer + "\u201d from " + other + ": " + formatScore(values[row * width + column]);
    });
    canvas.addEventListener("click", (event) => {
      const at = locate(event);
      if (!at || drawn.cell !== null) return;
      columns.value = String(drawn.from + at[1] * drawn.columnStep);
      drawMatrix();
    });
  }

  if (data.steps) makeChoosable();
  readAddress();
})();
