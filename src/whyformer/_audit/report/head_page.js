"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = { example: 0, block: data.blocks[data.blocks.length - 1], head: 0, swap: "uniform" };
  const find = (id) => document.getElementById(id);
  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const example = () => data.examples[at.example];
  const heads = () => example().heads[data.blocks.indexOf(at.block)];
  const one = () => heads()[at.head];
  const findSwap = (head) => head.swaps.find((swap) => swap.kind === at.swap);
  const format = (value) => {
    const digits = Math.abs(value).toFixed(3);
    return Number(digits) === 0 ? digits : (value < 0 ? "\u2212" : "+") + digits;
  };
  const nameSwap = (kind) => data.titles[kind] || "weights of " + kind;

  // The choice is kept in the address, so that it can be sent to somebody.
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const name of ["example", "block", "head"]) {
      const number = Number.parseInt(given.get(name), 10);
      if (Number.isInteger(number)) at[name] = number;
    }
    if (given.get("swap")) at.swap = given.get("swap");
    settle();
  }
  function writeAddress() {
    history.replaceState(null, "", "#" + new URLSearchParams(at).toString());
  }
  function settle() {  // a choice that is not there becomes the nearest that is
    if (!(at.example in data.examples)) at.example = 0;
    if (!data.blocks.includes(at.block)) at.block = data.blocks[data.blocks.length - 1];
    if (!(at.head in heads())) at.head = 0;
    if (!findSwap(one()) && one().swaps.length) at.swap = one().swaps[0].kind;
  }

  function fill(id, options, chosen) {
    const select = find(id);
    select.replaceChildren(...options.map(([value, text]) => {
      const option = make("option", text);
      option.value = value;
      option.selected = String(value) === String(chosen);
      return option;
    }));
  }
  function fillChoosers() {
    fill("example", data.examples.map((each, i) => [i, i + ": " + each.name]), at.example);
    fill("block", data.blocks.map((block) => [block, "block " + block]), at.block);
    fill("head", heads().map((_, i) => [i, "head " + i]), at.head);
    fill("swap", one().swaps.map((swap) => [swap.kind, nameSwap(swap.kind)]), at.swap);
  }

  function showWeights(id, weights, largest) {
    const level = (value) => "u" + Math.round(Math.min(largest > 0 ? value / largest : 0, 1) * data.levels);
    const box = find(id), shown = example();
    box.className = shown.grid ? "patches" : "text";
    if (shown.grid) {
      box.style.gridTemplateColumns = "repeat(" + shown.grid[1] + ", 1fr)";
      box.replaceChildren(...weights.map((value) => {
        const cell = make("span", undefined, level(value));
        cell.title = value.toFixed(4);
        return cell;
      }));
      return;
    }
    box.style.gridTemplateColumns = "";
    const parts = [];
    for (const [text, before, special, places] of shown.chips) {
      const value = places.reduce((sum, place) => sum + weights[place], 0);
      const mark = make("mark", text, level(value) + (special ? " special" : ""));
      mark.title = value.toFixed(4);
      parts.push(document.createTextNode(before), mark);
    }
    box.replaceChildren(...parts, document.createTextNode(shown.tail));
  }
  function showAnswer(id, probabilities) {
    const rows = [];
    example().labels.forEach((label, i) => {
      const track = make("div", undefined, "track"), bar = make("div", undefined, "fill");
      bar.style.width = (100 * Math.min(Math.max(probabilities[i], 0), 1)).toFixed(1) + "%";
      track.append(bar);
      rows.push(make("span", label, i === 0 ? "first" : ""), track, make("span", probabilities[i].toFixed(3)));
    });
    find(id).replaceChildren(...rows);
  }
  function measure(weights) {  // the largest weight of a word: special tokens often have most of it
    const chips = example().chips;
    if (!chips) return Math.max(...weights);
    const words = chips.filter((chip) => !chip[2]);
    return Math.max(...(words.length ? words : chips).map((chip) => chip[3].reduce((sum, i) => sum + weights[i], 0)));
  }

  function showCells() {
    const shown = example().heads, table = find("cells"), most = Math.max(...shown.map((row) => row.length));
    const top = make("tr");
    top.append(make("th"), ...Array.from({ length: most }, (_, i) => make("th", "head " + i)));
    const rows = data.blocks.map((block, b) => {
      const row = make("tr");
      row.append(make("th", "block " + block));
      shown[b].forEach((head, h) => {
        const cell = make("td"), swap = findSwap(head);
        const moved = swap ? swap.after[0] - example().before[0] : 0;
        const level = Math.min(Math.round(Math.sqrt(Math.abs(moved)) * data.levels), data.levels);
        const button = make("button", swap ? format(moved) : "\u2013", swap ? (moved < 0 ? "a" : "f") + level : "u0");
        if (swap && level === 0) button.className = "u0";
        button.type = "button";
        button.setAttribute("aria-pressed", String(block === at.block && h === at.head));
        button.setAttribute("aria-label", "block " + block + ", head " + h);
        button.addEventListener("click", () => choose({ block, head: h }));
        cell.append(button);
        row.append(cell);
      });
      return row;
    });
    table.replaceChildren(top, ...rows);
  }

  function show() {
    fillChoosers();
    const swap = findSwap(one()), observed = one().observed;
    find("before-title").textContent = "Observed: block " + at.block + ", head " + at.head;
    showAnswer("before-answer", example().before);
    const weights = !swap ? observed : swap.head === null ? swap.weights : heads()[swap.head].observed;
    const largest = Math.max(measure(observed), measure(weights));
    showWeights("before-text", observed, largest);
    showWeights("after-text", weights, largest);
    showAnswer("after-answer", swap ? swap.after : example().before);
    find("after-title").textContent = swap
      ? "Replaced by " + nameSwap(swap.kind) : "No weight can be moved";
    const moved = swap ? swap.after[0] - example().before[0] : 0;
    find("summary").textContent = swap
      ? example().labels[0] + ": " + example().before[0].toFixed(3) + " before, " + swap.after[0].toFixed(3) +
        " after (" + format(moved) + ")" : "";
    showCells();
  }
  function choose(change) {
    Object.assign(at, change);
    settle();
    writeAddress();
    show();
  }

  for (const name of ["example", "block", "head"])
    find(name).addEventListener("change", (event) => choose({ [name]: Number(event.target.value) }));
  find("swap").addEventListener("change", (event) => choose({ swap: event.target.value }));
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  readAddress();
  show();
})();
