// The matrix of all calls: one row per rank, one column per call.
//
// Ranks that did the same share one row of states, so that a picture of 16,384
// ranks is drawn from a few lines.  A point of the screen that holds many cells
// shows the worst of them: nothing odd is too small to be seen.

const LEFT = 76;
const RIGHT = 16;
const BOTTOM = 26;
const FIRST_COLUMNS = 120;
const WIDEST_CELL = 44;
const HIGHEST_CELL = 24;
// The worse a state, the larger; by its number.  What differs is worst.
const WORSE = [0, 1, 5, 4, 6, 7, 3, 2];
const DIFFERS = 8;
// How much of its color is mixed into the ground, by state.
const INKS = [
  ["--line", 0.6], ["--fine", 0.22], ["--victim", 0.95], ["--victim", 0.5],
  ["--culprit", 0.8], ["--culprit", 0.62], ["--victim", 0.25], ["--unknown", 0.5],
];

distdebug.section("matrix", async (root, data) => {
  if (!data) {
    return;
  }
  const field = root.querySelector(".matrix");
  field.hidden = false;
  if (!("DecompressionStream" in window)) {
    field.replaceChildren(field.querySelector(".matrix-old"));
    field.firstChild.hidden = false;
    return;
  }
  const at = {
    data,
    field,
    canvas: field.querySelector("canvas"),
    told: field.querySelector(".matrix-told"),
    range: field.querySelector(".matrix-range span"),
    color: data.color,
    cursor: null,
    view: null,
  };
  fillChoices(at);
  listen(at);
  await show(at, 0);
  // What was selected while it was unpacked, as by the address of the page.
  await follow(at, distdebug.selected());
  distdebug.tellSelection();
  performance.mark("distdebug:matrix");
});

// ---- what is shown ----

async function show(at, number) {
  at.number = number;
  const view = await unpacked(at.data, number);
  if (at.number !== number) {
    return;
  }
  at.view = view;
  at.field.querySelector(".matrix-view select").value = String(number);
  const color = at.field.querySelector(".matrix-color");
  color.hidden = !at.view.late;
  if (!at.view.late) {
    at.color = "state";
  }
  color.querySelector("select").value = at.color;
  const [row, column] = at.view.focus;
  at.cursor = {row, column};
  zoomFirst(at);
  tellKey(at);
  draw(at);
  tell(at, at.cursor);
}

async function unpacked(data, number) {
  const view = data.views[number];
  if (!view.blob) {
    return view;
  }
  const packed = bytesOf(view.blob);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const take = ([kind, offset, length]) =>
    kind === "u8" ? new Uint8Array(buffer, offset, length) : new Uint32Array(buffer, offset, length);
  for (const name of ["columns", "ranks", "group", "kind", "states", "programs", "stacks"]) {
    view[name] = take(view[name]);
  }
  if (view.late) {
    for (const name of ["late", "typical", "pause"]) {
      view.late[name] = take(view.late[name]);
    }
    view.late.width = view.columns.length - view.late.start;
    view.late.range = rangeOf(view.late);
  }
  view.rowOf = new Map(Array.from(view.ranks, (rank, row) => [rank, row]));
  view.other = new Map(view.others.map(([kind, column, call]) => [`${kind},${column}`, call]));
  view.blob = "";
  return view;
}

function bytesOf(base64) {
  if (Uint8Array.fromBase64) {
    return Uint8Array.fromBase64(base64);
  }
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) {
    bytes[i] = text.charCodeAt(i);
  }
  return bytes;
}

// From what is usual to what hardly ever happens.
function rangeOf(late) {
  const counts = new Array(256).fill(0);
  for (const step of late.late) {
    counts[step] += 1;
  }
  const known = late.late.length - counts[0];
  const share = (part) => {
    let sum = 0;
    for (let step = 1; step < 256; step += 1) {
      sum += counts[step];
      if (sum > known * part) {
        return step;
      }
    }
    return 255;
  };
  const low = share(0.5);
  return [low, Math.max(share(0.998), low + late.steps)];
}

function stateAt(view, row, column) {
  return view.states[view.kind[row] * view.columns.length + column];
}

function lateAt(view, row, column) {
  const {late} = view;
  return late && column >= late.start ? late.late[row * late.width + column - late.start] : 0;
}

// ---- the window ----

function zoomFirst(at) {
  const {view} = at;
  const count = Math.min(view.columns.length, FIRST_COLUMNS);
  const left = Math.max(0, Math.min(view.focus[1] - count * 0.6, view.columns.length - count));
  at.window = {top: 0, rows: view.rows, left, columns: count};
}

function keepInside(at) {
  const {window: w, view} = at;
  w.rows = Math.min(Math.max(w.rows, 4), view.rows);
  w.columns = Math.min(Math.max(w.columns, 8), view.columns.length);
  w.top = Math.min(Math.max(w.top, 0), view.rows - w.rows);
  w.left = Math.min(Math.max(w.left, 0), view.columns.length - w.columns);
}

function zoom(at, factor, row, column) {
  const {window: w} = at;
  w.top = row - (row - w.top) * factor;
  w.left = column - (column - w.left) * factor;
  w.rows *= factor;
  w.columns *= factor;
  keepInside(at);
  draw(at);
}

function bring(at, {row, column}) {
  const {window: w} = at;
  if (row < w.top || row >= w.top + w.rows) {
    w.top = row - w.rows / 2;
  }
  if (column < w.left || column >= w.left + w.columns) {
    w.left = column - w.columns / 2;
  }
  keepInside(at);
}

// Where the cells are, in CSS pixels.
function placed(at) {
  const {canvas, window: w} = at;
  const width = Math.max(canvas.clientWidth - LEFT - RIGHT, 40);
  return {
    width: Math.min(width, w.columns * WIDEST_CELL),
    height: Math.min(canvas.clientHeight - BOTTOM - 10, w.rows * HIGHEST_CELL),
  };
}

function cellAt(at, event) {
  const box = at.canvas.getBoundingClientRect();
  const {width, height} = placed(at);
  const x = (event.clientX - box.left - LEFT) / width;
  const y = (event.clientY - box.top) / height;
  if (x < 0 || x >= 1 || y < 0 || y >= 1) {
    return null;
  }
  const {window: w} = at;
  return {row: Math.floor(w.top + y * w.rows), column: Math.floor(w.left + x * w.columns)};
}

// ---- colors ----

function inksOf(at) {
  const style = getComputedStyle(at.field);
  const pen = document.createElement("canvas").getContext("2d");
  const token = (name) => {
    pen.fillStyle = style.getPropertyValue(name).trim();
    const hex = pen.fillStyle;
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  };
  const ground = token("--bg");
  const mix = (color, part) => color.map((c, i) => Math.round(ground[i] + (c - ground[i]) * part));
  const number = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const culprit = token("--culprit");
  const fine = mix(token("--fine"), 0.16);
  const victim = mix(token("--victim"), 0.8);
  const ramp = (t) => {
    const [from, to, part] = t < 0.5 ? [fine, victim, t * 2] : [victim, culprit, t * 2 - 1];
    return from.map((c, i) => Math.round(c + (to[i] - c) * part));
  };
  const states = INKS.map(([name, part]) => mix(token(name), part));
  return {
    style,
    css: (name) => style.getPropertyValue(name).trim(),
    states: [...states, culprit],
    packed: [...states, culprit].map(number),
    ramp,
    late: Array.from({length: 256}, (_, i) => number(ramp(i / 255))),
    unknown: number(mix(token("--line"), 0.6)),
  };
}

const rgb = (color) => `rgb(${color.join(" ")})`;

// ---- drawing ----

function draw(at) {
  if (!at.view || !at.canvas.clientWidth) {
    return;
  }
  fitHeight(at);
  const {canvas} = at;
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * scale);
  canvas.height = Math.round(canvas.clientHeight * scale);
  at.inks = inksOf(at);
  const pen = canvas.getContext("2d");
  const {width, height} = placed(at);
  drawCells(at, pen, Math.round(LEFT * scale), Math.round(width * scale), Math.round(height * scale));
  pen.scale(scale, scale);
  drawGrid(at, pen, width, height);
  drawSigns(at, pen, width, height);
  drawRows(at, pen, width, height);
  drawColumns(at, pen, width, height);
  drawCursor(at, pen, width, height);
  tellRange(at);
  canvas.dataset.drawn = at.color;
}

function fitHeight(at) {
  at.canvas.style.height = "";
  const needed = at.window.rows * HIGHEST_CELL + BOTTOM + 10;
  if (needed < at.canvas.clientHeight) {
    at.canvas.style.height = `${needed}px`;
  }
}

function drawCells(at, pen, left, width, height) {
  const {view, window: w} = at;
  const image = pen.createImageData(width, height);
  const points = new Uint32Array(image.data.buffer);
  const first = new Int32Array(width + 1);
  for (let x = 0; x <= width; x += 1) {
    first[x] = Math.floor(w.left + (x * w.columns) / width + 1e-9);
  }
  const lines = new Map();
  for (let y = 0; y < height; y += 1) {
    const top = Math.floor(w.top + (y * w.rows) / height + 1e-9);
    const end = Math.min(Math.max(Math.floor(w.top + ((y + 1) * w.rows) / height), top + 1), view.rows);
    const key = at.color === "late" ? `${top},${end}` : kindsOf(view, top, end);
    if (!lines.has(key)) {
      const line = at.color === "late" ? lateLine(at, first, top, end) : stateLine(at, first, key);
      lines.set(key, line);
    }
    points.set(lines.get(key), y * width);
  }
  pen.putImageData(image, left, 0);
}

function kindsOf(view, top, end) {
  if (end === top + 1) {
    return String(view.kind[top]);
  }
  const kinds = new Set();
  for (let row = top; row < end; row += 1) {
    kinds.add(view.kind[row]);
  }
  return [...kinds].join();
}

function stateLine(at, first, key) {
  const {view, inks} = at;
  const line = new Uint32Array(first.length - 1);
  const total = view.columns.length;
  const worst = new Int8Array(line.length).fill(-1);
  for (const kind of key.split(",").map(Number)) {
    for (let x = 0; x < line.length; x += 1) {
      const end = Math.min(Math.max(first[x + 1], first[x] + 1), total);
      for (let column = first[x]; column < end; column += 1) {
        const state = view.states[kind * total + column];
        const worse = state & DIFFERS ? 9 : WORSE[state];
        if (worse > worst[x]) {
          worst[x] = worse;
          line[x] = inks.packed[state & DIFFERS ? 8 : state];
        }
      }
    }
  }
  return line;
}

function lateLine(at, first, top, end) {
  const {view, inks} = at;
  const line = new Uint32Array(first.length - 1);
  for (let x = 0; x < line.length; x += 1) {
    let worst = 0;
    const stop = Math.min(Math.max(first[x + 1], first[x] + 1), view.columns.length);
    for (let row = top; row < end; row += 1) {
      for (let column = first[x]; column < stop; column += 1) {
        worst = Math.max(worst, lateAt(view, row, column));
      }
    }
    line[x] = worst ? inks.late[shade(view.late, worst)] : inks.unknown;
  }
  return line;
}

function shade({range: [low, high]}, step) {
  return Math.round(255 * Math.min(Math.max((step - low) / (high - low), 0), 1));
}

function drawGrid(at, pen, width, height) {
  const {window: w} = at;
  const [cellWidth, cellHeight] = [width / w.columns, height / w.rows];
  pen.fillStyle = at.inks.css("--bg");
  if (cellWidth >= 5) {
    for (let column = Math.ceil(w.left); column <= w.left + w.columns; column += 1) {
      pen.fillRect(LEFT + (column - w.left) * cellWidth - 1, 0, 1, height);
    }
  }
  if (cellHeight >= 5) {
    for (let row = Math.ceil(w.top); row <= w.top + w.rows; row += 1) {
      pen.fillRect(LEFT, (row - w.top) * cellHeight - 1, width, 1);
    }
  }
}

// Signs say the same as colors, where there is room for them.
function drawSigns(at, pen, width, height) {
  const {view, window: w, inks} = at;
  const [cellWidth, cellHeight] = [width / w.columns, height / w.rows];
  if (at.color !== "state" || cellWidth < 9 || cellHeight < 9) {
    return;
  }
  pen.font = `600 ${Math.min(12, cellHeight - 1, cellWidth)}px ${inks.css("--sans")}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (let row = Math.floor(w.top); row < Math.min(w.top + w.rows, view.rows); row += 1) {
    const end = Math.min(w.left + w.columns, view.columns.length);
    for (let column = Math.floor(w.left); column < end; column += 1) {
      const state = stateAt(view, row, column);
      if (state === 1) {
        continue;
      }
      pen.fillStyle = inks.css(state === 0 ? "--muted" : state === 3 || state === 6 ? "--fg" : "--bg");
      const sign = state & DIFFERS ? "≠" : at.data.states[state][1];
      const x = LEFT + (column + 0.5 - w.left) * cellWidth;
      pen.fillText(sign, x - 0.5, (row + 0.5 - w.top) * cellHeight);
    }
  }
}

function drawRows(at, pen, width, height) {
  const {view, window: w, inks} = at;
  const cell = height / w.rows;
  const blamed = at.data.blamed.map((rank) => view.rowOf.get(rank)).filter((row) => row !== undefined);
  const inside = (row) => row >= Math.floor(w.top) && row < w.top + w.rows;
  // All ranks may be to blame; a few are enough to be named.
  const named = blamed.filter(inside).slice(0, 6);
  const taken = [];
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const write = (row, color, weight) => {
    const y = Math.min(Math.max((row + 0.5 - w.top) * cell, 6), Math.max(height - 6, 6));
    if (taken.some((other) => Math.abs(other - y) < 13)) {
      return;
    }
    taken.push(y);
    pen.font = `${weight} 11px ${inks.css("--sans")}`;
    pen.fillStyle = inks.css(color);
    pen.fillText(`rank ${view.ranks[row]}`, LEFT - 10, y);
    pen.fillRect(LEFT - 6, y - 0.5, 4, 1);
  };
  for (const row of named) {
    write(row, "--culprit", 700);
  }
  const step = niceStep((cell >= 14 ? 14 : 24) / cell);
  for (let row = Math.ceil(w.top / step) * step; row < w.top + w.rows; row += step) {
    write(Math.min(row, view.rows - 1), "--muted", 400);
  }
}

function drawColumns(at, pen, width, height) {
  const {view, window: w, inks} = at;
  const cell = width / w.columns;
  pen.font = `400 11px ${inks.css("--sans")}`;
  pen.textAlign = "center";
  pen.textBaseline = "top";
  pen.fillStyle = inks.css("--muted");
  const last = view.columns[view.columns.length - 1];
  const step = niceStep((pen.measureText(`#${last}`).width + 14) / cell);
  const begin = Math.floor(w.left);
  for (let column = begin; column < Math.min(w.left + w.columns, view.columns.length); column += 1) {
    const x = LEFT + (column + 0.5 - w.left) * cell;
    if (view.columns[column] % step === 0 && x > LEFT) {
      pen.fillRect(x - 0.5, height + 1, 1, 4);
      pen.fillText(`#${view.columns[column]}`, x, height + 7);
    }
  }
  if (w.columns < view.columns.length) {
    const total = view.columns.length;
    pen.fillStyle = inks.css("--line");
    pen.fillRect(LEFT, height + 22, width, 3);
    pen.fillStyle = inks.css("--muted");
    pen.fillRect(LEFT + (w.left / total) * width, height + 22, Math.max((w.columns / total) * width, 6), 3);
  }
}

function niceStep(least) {
  for (let power = 1; ; power *= 10) {
    for (const step of [1, 2, 5]) {
      if (step * power >= least) {
        return step * power;
      }
    }
  }
}

function drawCursor(at, pen, width, height) {
  const {window: w, cursor, inks} = at;
  if (!cursor) {
    return;
  }
  const [cellWidth, cellHeight] = [width / w.columns, height / w.rows];
  const x = LEFT + (cursor.column - w.left) * cellWidth;
  const y = (cursor.row - w.top) * cellHeight;
  if (x < LEFT - 1 || x > LEFT + width || y < -1 || y > height) {
    return;
  }
  const size = [Math.max(cellWidth, 8), Math.max(cellHeight, 8)];
  const box = [x + (cellWidth - size[0]) / 2 - 1, y + (cellHeight - size[1]) / 2 - 1, size[0] + 1, size[1] + 1];
  if (at.color === "state" && (cellWidth < 8 || cellHeight < 8)) {
    const state = stateAt(at.view, cursor.row, cursor.column);
    pen.fillStyle = rgb(inks.states[state & DIFFERS ? 8 : state]);
    pen.fillRect(...box);
  }
  pen.strokeStyle = inks.css("--fg");
  pen.lineWidth = 2;
  pen.strokeRect(...box);
}

// ---- words ----

function tell(at, cell) {
  const {view, data, told} = at;
  const {row, column} = cell;
  const state = stateAt(view, row, column);
  const kind = view.kind[row];
  const usual = data.calls[view.programs[view.program[kind] * view.columns.length + column]];
  const own = state & DIFFERS ? data.calls[view.other.get(`${kind},${column}`)] : usual;
  const seq = `#${view.columns[column]}`;
  told.replaceChildren();
  const line = (text, tag = "p", name = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = name;
    told.append(element);
    return element;
  };
  line(`rank ${view.ranks[row]} · ${opOf(own) || "call"} ${seq}`, "p").style.fontWeight = "600";
  const [name, sign, word] = data.states[state & ~DIFFERS];
  line(`${sign} ${word}`, "p", colorOf(name));
  if (state & DIFFERS) {
    line(`≠ the others called ${written(usual)}`, "p", "culprit");
  }
  if (own) {
    line(sizesOf(own), "p", "mono");
  }
  const [, groupName, members] = view.groups[view.group[row]];
  line(`group ${groupName}${members ? `: ${members}` : ""}`, "p", "muted");
  tellTimes(view, row, column, line);
  tellLines(at, row, column, line);
}

// What is not in the window is easily taken for what is not there.
function tellRange(at) {
  const {view, window: w} = at;
  const total = [view.columns.length, view.rows];
  const shown = [Math.min(Math.ceil(w.columns), total[0]), Math.min(Math.ceil(w.rows), total[1])];
  const part = ([own, all], noun) => own < all
    ? `${own.toLocaleString("en")} of ${all.toLocaleString("en")} ${noun}s`
    : `${all === 1 ? "the one" : `all ${all.toLocaleString("en")}`} ${noun}${all === 1 ? "" : "s"}`;
  const words = [part([shown[0], total[0]], "call"), part([shown[1], total[1]], "rank")];
  at.range.textContent = `shown: ${words.join(", ")}`;
  at.field.querySelector("[data-do=all]").disabled = shown.join() === total.join();
}

function opOf(call) {
  return call && call[0].replace(/^[^:]*:/, "");
}

function sizesOf([, input, output]) {
  if (input === output) {
    return input ? `in and out ${input}` : "";
  }
  return [input && `in ${input}`, output && `out ${output}`].filter(Boolean).join(" → ");
}

function written(call) {
  return call ? `${opOf(call)} ${call[1]}` : "nothing";
}

function colorOf(name) {
  return {done: "fine", started: "victim", scheduled: "victim", away: "victim",
    ended: "culprit", absent: "culprit", none: "unknown", lost: "muted"}[name];
}

function tellTimes(view, row, column, line) {
  const {late} = view;
  const step = lateAt(view, row, column);
  if (!step) {
    return;
  }
  const at = view.group[row] * late.width + column - late.start;
  const parts = [step === 1 ? "came first" : `came ${duration(late, step)} after the first`];
  if (late.typical[at] > 1) {
    parts.push(`usual is ${duration(late, late.typical[at])}`);
  }
  line(parts.join("; "), "p");
  if (late.pause[at] > 1) {
    line(`${duration(late, late.pause[at])} after the call before`, "p", "muted");
  }
}

function duration(late, step) {
  const us = 10 ** ((step - 1) / late.steps);
  const [value, unit] = us < 1e3 ? [us, "µs"] : us < 1e6 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
  return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

function tellLines({data, view}, row, column, line) {
  const traced = view.traced.indexOf(view.kind[row]);
  if (traced < 0) {
    return;
  }
  const width = view.columns.length;
  const numbers = view.stacks.subarray(traced * width, (traced + 1) * width);
  let where = column;
  if (stateAt(view, row, column) >= 5) {
    // It never came here: where was it last?
    while (where > 0 && !data.stacks[numbers[where]]) {
      where -= 1;
    }
  }
  const stack = data.stacks[numbers[where]];
  if (!stack) {
    return;
  }
  const recorder = view.ranks[view.kind.indexOf(view.kind[row])];
  const whose = recorder === view.ranks[row] ? "" : ` (by rank ${recorder})`;
  line(`${where === column ? "called" : `last call on record, #${view.columns[where]},`} at${whose}`, "p", "muted");
  line(stack.join("\n"), "pre");
}

function tellKey(at) {
  const {view, data, field} = at;
  const key = field.querySelector(".matrix-key");
  const inks = inksOf(at);
  key.replaceChildren();
  const item = (paint, text) => {
    const element = document.createElement("li");
    const swatch = document.createElement("canvas");
    swatch.setAttribute("aria-hidden", "true");
    [swatch.width, swatch.height] = [28, 18];
    paint(swatch.getContext("2d"));
    element.append(swatch, text);
    key.append(element);
  };
  if (at.color === "late") {
    const [low, high] = view.late.range;
    item((pen) => {
      for (let x = 0; x < 28; x += 1) {
        pen.fillStyle = rgb(inks.ramp(x / 27));
        pen.fillRect(x, 0, 1, 18);
      }
    }, `up to ${duration(view.late, low)} … ${duration(view.late, high)} and more after the first of the group`);
  } else {
    const seen = new Set(view.states);
    const isOther = [...seen].some((state) => state & DIFFERS);
    data.states.forEach(([, sign, word], state) => {
      if (seen.has(state) || seen.has(state | DIFFERS)) {
        item((pen) => { pen.fillStyle = rgb(inks.states[state]); pen.fillRect(0, 0, 28, 18); }, `${sign} ${word}`);
      }
    });
    if (isOther) {
      item((pen) => { pen.fillStyle = rgb(inks.states[8]); pen.fillRect(0, 0, 28, 18); }, "≠ not the call of the others");
    }
  }
  field.querySelector(".matrix-note").textContent = noteOn(view);
}

function noteOn(view) {
  const notes = [];
  if (view.cut) {
    notes.push(`${view.cut.toLocaleString("en")} older calls are left out.`);
  }
  if (view.late) {
    if (view.late.start) {
      notes.push(`Times are here for the newest ${view.late.width.toLocaleString("en")} calls only.`);
    }
    if (view.late.clocks > 1) {
      notes.push(view.late.doubt_ms
        ? `Times are corrected for ${view.late.clocks.toLocaleString("en")} clocks, to about ${view.late.doubt_ms} ms.`
        : "Times are by clocks that may differ.");
    }
  }
  return notes.join(" ");
}

// ---- what people do ----

function fillChoices(at) {
  const select = at.field.querySelector(".matrix-view select");
  at.data.views.forEach((view, i) => {
    const count = view.groups.length > 1 ? ` (${view.groups.length.toLocaleString("en")} groups)` : "";
    select.add(new Option(view.name + count, String(i)));
  });
  select.addEventListener("change", () => show(at, Number(select.value)));
  const color = at.field.querySelector(".matrix-color select");
  color.addEventListener("change", () => {
    at.color = color.value;
    tellKey(at);
    draw(at);
  });
}

function listen(at) {
  const {canvas, field} = at;
  const redraw = () => { if (at.view) { tellKey(at); draw(at); } };
  new ResizeObserver(redraw).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is light, whatever the screen was.
  window.addEventListener("beforeprint", redraw);
  window.addEventListener("afterprint", redraw);
  listenToPointer(at);
  canvas.addEventListener("keydown", (event) => onKey(at, event));
  field.querySelector(".matrix-find").addEventListener("submit", (event) => {
    event.preventDefault();
    find(at, event.target.querySelector("input"));
  });
  field.querySelector(".matrix-bar").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-do]");
    if (button) {
      act(at, button.dataset.do);
    }
  });
  document.addEventListener("distdebug:select", ({detail}) => follow(at, detail));
}

function act(at, what) {
  const {view, window: w} = at;
  const {row, column} = at.cursor;
  if (what === "in" || what === "out") {
    zoom(at, what === "in" ? 0.5 : 2, row, column);
  } else if (what === "all") {
    at.window = {top: 0, left: 0, rows: view.rows, columns: view.columns.length};
    draw(at);
  } else {
    const rows = Math.min(view.rows, 16);
    at.window = {top: view.focus[0] - rows / 2, left: view.focus[1] - 20, rows, columns: 40};
    move(at, {row: view.focus[0], column: view.focus[1]}, true);
  }
}

function find(at, input) {
  const row = at.view.rowOf.get(Number(input.value));
  const isThere = input.value !== "" && row !== undefined;
  input.setCustomValidity(isThere ? "" : "no such rank in these groups");
  input.reportValidity();
  input.addEventListener("input", () => input.setCustomValidity(""), {once: true});
  if (isThere) {
    const rows = Math.min(at.view.rows, 24);
    at.window = {...at.window, top: row - rows / 2, rows};
    move(at, {row, column: at.cursor.column}, true);
    choose(at);
  }
}

function move(at, cell, isTold) {
  const {view} = at;
  at.cursor = {
    row: Math.min(Math.max(cell.row, 0), view.rows - 1),
    column: Math.min(Math.max(cell.column, 0), view.columns.length - 1),
  };
  bring(at, at.cursor);
  draw(at);
  at.told.setAttribute("aria-live", isTold ? "polite" : "off");
  tell(at, at.cursor);
}

function choose(at) {
  const {view, cursor: {row, column}} = at;
  at.isMine = true;
  distdebug.select({
    rank: view.ranks[row],
    group: view.groups[view.group[row]][0],
    seq: view.columns[column],
  });
  at.isMine = false;
}

function onKey(at, event) {
  if (!at.view || event.ctrlKey || event.metaKey || event.altKey) {
    return;
  }
  const {row, column} = at.cursor;
  const far = event.shiftKey ? 10 : 1;
  const steps = {
    ArrowLeft: [0, -far], ArrowRight: [0, far], ArrowUp: [-far, 0], ArrowDown: [far, 0],
    PageUp: [-20, 0], PageDown: [20, 0], Home: [0, -column], End: [0, at.view.columns.length],
  };
  const doings = {"+": "in", "=": "in", "-": "out", "0": "all"};
  if (steps[event.key]) {
    move(at, {row: row + steps[event.key][0], column: column + steps[event.key][1]}, true);
  } else if (doings[event.key]) {
    act(at, doings[event.key]);
  } else if (event.key === "Enter" || event.key === " ") {
    choose(at);
  } else {
    return;
  }
  event.preventDefault();
}

function listenToPointer(at) {
  const {canvas} = at;
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = {x: event.clientX, y: event.clientY, ...at.window, hasMoved: false};
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!at.view) {
      return;
    }
    if (held && (held.hasMoved || Math.hypot(event.clientX - held.x, event.clientY - held.y) > 4)) {
      held.hasMoved = true;
      canvas.setPointerCapture(event.pointerId);
      drag(at, held, event);
      return;
    }
    const cell = cellAt(at, event);
    at.told.setAttribute("aria-live", "off");
    tell(at, cell || at.cursor);
  });
  canvas.addEventListener("pointerup", (event) => {
    const cell = held && !held.hasMoved && cellAt(at, event);
    held = null;
    if (cell) {
      move(at, cell, false);
      choose(at);
    }
  });
  canvas.addEventListener("pointercancel", () => { held = null; });
  canvas.addEventListener("pointerleave", () => {
    if (at.view && !held) {
      tell(at, at.cursor);
    }
  });
  canvas.addEventListener("wheel", (event) => onWheel(at, event), {passive: false});
}

function drag(at, held, event) {
  const {width, height} = placed(at);
  at.window.left = held.left - ((event.clientX - held.x) / width) * at.window.columns;
  at.window.top = held.top - ((event.clientY - held.y) / height) * at.window.rows;
  keepInside(at);
  draw(at);
}

// The wheel scrolls the page; with Ctrl (or two fingers) it zooms here.
function onWheel(at, event) {
  const cell = at.view && cellAt(at, event);
  if (!cell) {
    return;
  }
  if (event.ctrlKey) {
    zoom(at, Math.exp(Math.sign(event.deltaY) * 0.25), cell.row, cell.column);
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    at.window.left += (event.deltaX / placed(at).width) * at.window.columns;
    keepInside(at);
    draw(at);
  } else {
    return;
  }
  event.preventDefault();
}

async function follow(at, {rank, group, seq}) {
  const isRow = at.view ? at.view.rowOf.has(rank) : false;
  const isGroup = at.data.views.some((view) => view.groups.some(([name]) => name === group));
  at.canvas.classList.toggle("is-selected", isRow || isGroup);
  if (at.isMine || !at.view || (rank === undefined && group === undefined)) {
    return;
  }
  if (group !== undefined && !at.view.groups.some(([name]) => name === group)) {
    const number = at.data.views.findIndex((view) => view.groups.some(([name]) => name === group));
    if (number >= 0) {
      await show(at, number);
    }
  }
  const {view} = at;
  const place = view.groups.findIndex(([name]) => name === group);
  const row = view.rowOf.get(rank) ?? (place < 0 ? -1 : view.group.indexOf(place));
  const column = seq === undefined ? at.cursor.column : view.columns.indexOf(seq);
  if (row >= 0) {
    move(at, {row, column: column < 0 ? at.cursor.column : column}, false);
  }
}
