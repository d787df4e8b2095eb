// Memory over time of a memory snapshot: stacked levels, and the segments and blocks at a chosen moment.
import { amount } from "./draw.js";
import { arraysOf, duration, inflated } from "./source.js";

const $ = (id) => document.getElementById(`memory-${id}`);
const levels = document.getElementById("levels"), space = document.getElementById("space");
const panel = $("details"), tip = $("tip"), embedded = $("embedded");
const parameters = new URLSearchParams(location.search);
const LEFT = 70, BOTTOM = 20, MARK = 14, ROW = 22, GAP = 6;
const HUES = [null, 210, 25, 265, 130, 48, 330, null, 175, 0, 95, 290, null];
const state = { layout: null, input: 0, device: 0, by: "category", axis: "event", from: 0, to: 1, data: null, moment: null, boxes: [], picked: null };
let asking = null, timer = 0, framed = false, dragged = null, source = null;

function trouble(error) {
  if (error?.name === "AbortError") return;
  $("trouble").textContent = error.message ?? String(error);
  $("trouble").hidden = false;
}

const element = (name, attributes, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) key === "onclick" ? made.addEventListener("click", value) : made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// ---- data: a server's, or what a report in one file carries

function served(root) {
  const call = async (path, query = {}, signal = undefined) => {
    for (let attempt = 0; ; attempt++) {
      const answer = await fetch(`${root}/api/trace/${state.input}/memory/${path}?${new URLSearchParams(query)}`, { signal });
      if (answer.ok) return answer;
      const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
      if (!body.waiting || attempt > 20) throw new Error(body.hint ? `${body.error}. ${body.hint}` : body.error);
    }
  };
  const way = () => ({ device: state.device, by: state.by, axis: state.axis });
  return {
    layout: async () => (await call("layout")).json(),
    window: async (low, high, px, signal) => arraysOf(await (await call("window", { ...way(), from: low, to: high, px }, signal)).arrayBuffer()),
    moment: async (which) => (await call("moment", { ...way(), ...which })).json(),
    stack: async (id) => (await (await call(`stack/${id}`)).json()).frames,
  };
}

// The report has one window for each device and way of stacking, which is all that there is.
async function carried() {
  const layouts = JSON.parse(embedded.dataset.layouts);
  const parts = await Promise.all(embedded.textContent.trim().split("\n").map(async (text) => arraysOf(await inflated(text.trim()))));
  const place = () => layouts.slice(0, state.input).reduce((sum, one) => sum + one.devices.length * 2, 0) + state.device * 2 + (state.by === "stack" ? 1 : 0);
  return {
    layout: async () => layouts[state.input],
    window: async () => parts[place()],
    moment: async ({ place: chosen }) => {
      const data = parts[place()], i = Math.max(data.at.findIndex((at) => at >= chosen), 0);
      const groups = Array.from({ length: data.groups }, (_, k) => data.parts[k * data.pixels + i]);
      return { place: data.at[i], x: data.low + (i * (data.high - data.low)) / data.pixels, ts_ns: null, event: null, allocated: data.most[i], reserved: data.reserved[i], groups, holders: null };
    },
  };
}

// ---- start

async function start() {
  source = embedded ? await carried() : served(document.body.dataset.root || "");
  state.input = embedded ? 0 : Number(parameters.get("snapshot") ?? $("input").value);
  $("input").value = state.input;
  if (parameters.get("by") === "stack") state.by = $("by").value = "stack";
  await load();
  new ResizeObserver(resize).observe(levels.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("themechange", () => { legend(); redraw(); });
}

async function load() {
  state.layout = await source.layout();
  $("device").replaceChildren(...state.layout.devices.map((one, i) => element("option", { value: i }, one.label)));
  $("device").parentElement.hidden = state.layout.devices.length < 2;
  const steps = state.layout.steps ?? [];
  $("step").parentElement.hidden = !steps.length;
  $("step").replaceChildren(element("option", { value: "" }, "all"), ...steps.map(([step, , length], i) => element("option", { value: i }, `${step} (${duration(length)})`)));
  // The most interesting device is the one that held most.
  const most = state.layout.devices.map((one) => one.most);
  state.device = Number(parameters.get("device") ?? most.indexOf(Math.max(...most)));
  $("device").value = state.device;
  await ofDevice();
}

const device = () => state.layout.devices[state.device];

async function ofDevice() {
  const known = Object.keys(device().axes);
  $("axis").parentElement.hidden = known.length < 2 || Boolean(embedded);
  state.axis = known.includes(parameters.get("axis")) ? parameters.get("axis") : known[0];
  $("axis").value = state.axis;
  whole();
  const at = parameters.get("at");
  if (at && state.axis === "time" && state.layout.origin_unix_ns) {
    const x = Number(BigInt(at) - BigInt(state.layout.origin_unix_ns)), [low, high] = device().axes.time;
    if (x < low || x > high) trouble(new Error("That moment is outside of the snapshot's history."));
    await choose({ x: Math.round(x) });
  } else if (parameters.get("place")) await choose({ place: Number(parameters.get("place")) });
  else await choose({ place: device().peak });
  document.documentElement.dataset.memory = "ready";
}

function whole() {
  go(...device().axes[state.axis]);
}

function go(low, high) {
  const [first, last] = device().axes[state.axis];
  if (embedded) [low, high] = [first, last];
  const length = Math.min(Math.max(high - low, state.axis === "time" ? 2000 : 20), (last - first) * 1.1 + 20);
  const from = Math.min(Math.max((low + high) / 2 - length / 2, first - length * 0.05), Math.max(last - length * 0.95, first - length * 0.05));
  [state.from, state.to] = [from, from + length];
  clearTimeout(timer);
  timer = setTimeout(() => ask().catch(trouble), 15);
  redraw();
}

// A window is asked for with half of it on either side, so that small moves need no answer.
async function ask() {
  const length = state.to - state.from, have = state.data?.way === way() ? state.data : null;
  if (have && have.low <= state.from && have.high >= state.to && Math.abs((have.high - have.low) / (2 * length) - 1) < 0.25) return;
  asking?.abort();
  asking = new AbortController();
  const px = Math.min(Math.max(Math.round((levels.clientWidth - LEFT) * 2), 32), 8000), asked = way();
  const data = await source.window(Math.floor(state.from - length / 2), Math.ceil(state.to + length / 2), px, asking.signal);
  if (asked !== way()) return;
  state.data = { ...data, way: asked };
  document.documentElement.dataset.windows = Number(document.documentElement.dataset.windows ?? 0) + 1;
  redraw();
}

const way = () => [state.input, state.device, state.by, state.axis].join();

// ---- drawing

function colours() {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const dark = colour("--is-dark") === "1", n = device().groups[state.by].length;
  const groups = Array.from({ length: n }, (_, i) => {
    const hue = i === n - 1 && state.by === "stack" ? null : HUES[i % HUES.length], first = i === 0;
    if (hue === null) return dark ? `hsl(215 10% ${first ? 38 : 55}%)` : `hsl(215 12% ${first ? 72 : 55}%)`;
    return dark ? `hsl(${hue} 48% 52%)` : `hsl(${hue} 50% 62%)`;
  });
  return { groups, text: colour("--text"), quiet: colour("--quiet"), line: colour("--line"), panel: colour("--panel"), lane: colour("--lane"), accent: colour("--accent"), back: colour("--back"), dark };
}

function fitted(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "middle";
  return [context, width];
}

function resize() {
  clearTimeout(timer);
  timer = setTimeout(() => ask().catch(trouble), 60);
  redraw();
}

function redraw() {
  if (framed || !state.layout) return;
  framed = true;
  requestAnimationFrame(() => {
    framed = false;
    drawLevels();
    if (space) drawSpace();
  });
}

const xOf = (value, width) => LEFT + ((value - state.from) / (state.to - state.from)) * (width - LEFT);

function drawLevels() {
  const tall = levels.parentElement.clientHeight, [context, width] = fitted(levels, tall), colour = colours();
  const most = device().most * 1.04 || 1, up = (value) => MARK + (tall - BOTTOM - MARK) * (1 - value / most);
  context.clearRect(0, 0, width, tall);
  for (const value of ticks(most, 5)) {
    context.fillStyle = colour.line;
    context.fillRect(LEFT, Math.round(up(value)), width - LEFT, 1);
    context.fillStyle = colour.quiet;
    context.textAlign = "right";
    context.fillText(amount(value, "bytes"), LEFT - 6, Math.max(up(value), 8));
  }
  context.textAlign = "left";
  const data = state.data;
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, tall);
  context.clip();
  if (data && data.way.split(",").slice(0, 2).join() === [state.input, state.device].join() && data.way === way()) {
    const step = (data.high - data.low) / data.pixels, [first, last] = device().axes[state.axis];
    const begin = Math.max(Math.floor((state.from - data.low) / step) - 1, 0), end = Math.min(Math.ceil((state.to - data.low) / step) + 1, data.pixels);
    const floor = new Float64Array(data.pixels);
    for (let k = 0; k < data.groups; k++) {
      context.fillStyle = colour.groups[k];
      context.beginPath();
      for (let i = begin; i < end; i++) {
        const value = data.parts[k * data.pixels + i], at = data.low + i * step;
        if (value <= 0 || at >= last || at + step <= first) continue;
        const left = xOf(at, width), right = xOf(at + step, width), low = up(floor[i]), high = up(floor[i] + value);
        context.rect(left, high, Math.max(right - left, 0.5) + 0.3, low - high);
        floor[i] += value;
      }
      context.fill();
    }
    context.strokeStyle = colour.text;
    context.lineWidth = 1;
    context.beginPath();
    let pen = false;
    for (let i = begin; i < end; i++) {
      const at = data.low + i * step;
      if (at >= last || at + step <= first) continue;
      const y = up(data.reserved[i]);
      pen ? context.lineTo(xOf(at, width), y) : context.moveTo(xOf(at, width), y);
      context.lineTo(xOf(at + step, width), y);
      pen = true;
    }
    context.stroke();
  }
  if (state.axis === "time") drawSteps(context, colour, width, tall);
  if (state.moment) {
    const x = momentX();
    context.fillStyle = colour.text;
    context.fillRect(Math.round(xOf(x, width)) - 0.5, 0, 1.5, tall - BOTTOM);
    context.beginPath();
    context.arc(xOf(x, width), up(state.moment.allocated), 4, 0, 7);
    context.fill();
  }
  for (const value of ticks(state.to, 6, state.from)) {
    const x = xOf(value, width);
    context.fillStyle = colour.line;
    context.fillRect(Math.round(x), tall - BOTTOM, 1, 5);
    context.fillStyle = colour.quiet;
    const text = state.axis === "time" ? duration(value) : Math.round(value).toLocaleString("en");
    if (x + context.measureText(text).width + 4 < width) context.fillText(text, x + 3, tall - 9);
  }
  context.restore();
}

function drawSteps(context, colour, width, tall) {
  for (const [step, start, length] of state.layout.steps ?? []) {
    const left = xOf(start, width), right = xOf(start + length, width);
    if (right < LEFT || left > width || right - left < 3) continue;
    context.fillStyle = colour.dark ? "rgb(255 255 255 / 25%)" : "rgb(0 0 0 / 25%)";
    context.fillRect(Math.round(left), 0, 1, tall - BOTTOM);
    context.fillStyle = colour.quiet;
    if (right - left > 40) context.fillText(right - left > 70 ? `step ${step}` : String(step), Math.max(left, LEFT) + 4, 7);
  }
}

const momentX = () => (state.axis === "event" ? state.moment.place : state.moment.x ?? state.moment.ts_ns ?? device().axes.time[0]);

function ticks(high, n, low = 0) {
  const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
  // Bytes are read in powers of two, the rest in tens.
  const step = low === 0 && n === 5 ? 2 ** Math.round(Math.log2(rough)) : [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) values.push(value);
  return values;
}

// Segments from left to right and from top to bottom, all to one scale; a long one goes on in the next row.
function drawSpace() {
  const known = state.moment?.segments;
  if (!known) return;
  const width = space.parentElement.clientWidth, total = known.reduce((sum, one) => sum + one[1], 0) || 1;
  const rows = Math.min(Math.max(Math.ceil(Math.sqrt(known.length) * 1.5), 6), 16), bytes = total / rows;
  const scale = (width - 2) / bytes, pieces = [];
  let row = 0, x = 0;
  known.forEach(([begin, size], i) => {
    let done = 0;
    while (done < size) {
      const part = Math.min(size - done, bytes - x);
      pieces.push({ segment: i, begin: begin + done, size: part, row, x: x * scale, ends: done + part >= size });
      [done, x] = [done + part, x + part];
      if (bytes - x < bytes * 1e-9) [row, x] = [row + 1, 0];
    }
  });
  const tall = (row + (x > 0 ? 1 : 0)) * (ROW + GAP), [context] = fitted(space, tall), colour = colours();
  context.clearRect(0, 0, width, tall);
  const [address, size, group, stack, made] = state.moment.blocks;
  state.boxes = [];
  const hatch = hatched(context, colour);
  let at = 0;
  for (const piece of pieces) {
    const y = piece.row * (ROW + GAP), wide = Math.max(piece.size * scale - (piece.ends ? 1 : 0), 0.4);
    context.fillStyle = hatch;
    context.fillRect(piece.x, y, wide, ROW);
    while (at > 0 && address[at - 1] + size[at - 1] > piece.begin) at--;
    for (; at < address.length && address[at] < piece.begin + piece.size; at++) {
      const low = Math.max(address[at], piece.begin), high = Math.min(address[at] + size[at], piece.begin + piece.size);
      if (high <= low) continue;
      const left = piece.x + (low - piece.begin) * scale, right = piece.x + (high - piece.begin) * scale;
      context.fillStyle = colour.groups[group[at]];
      context.fillRect(left, y, Math.max(right - left - (right - left > 3 ? 0.6 : 0), 0.4), ROW);
      state.boxes.push({ left, right, y, block: at, stack: stack[at], bytes: size[at], made: made[at], address: address[at] });
      if (state.picked === address[at]) {
        context.strokeStyle = colour.text;
        context.lineWidth = 2;
        context.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), ROW - 2);
      }
    }
    context.strokeStyle = colour.quiet;
    context.lineWidth = 0.5;
    context.strokeRect(piece.x + 0.25, y + 0.25, Math.max(wide - 0.5, 0.3), ROW - 0.5);
  }
}

function hatched(context, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const inner = tile.getContext("2d");
  inner.fillStyle = colour.back;
  inner.fillRect(0, 0, 6, 6);
  inner.strokeStyle = colour.line;
  inner.beginPath();
  for (const shift of [-6, 0, 6]) { inner.moveTo(shift, 6); inner.lineTo(shift + 6, 0); }
  inner.stroke();
  return context.createPattern(tile, "repeat");
}

// ---- the chosen moment

async function choose(which) {
  try {
    const at = await source.moment(which);
    state.moment = { ...at, x: which.x ?? at.x };
    state.picked = null;
    describe();
    remember();
    redraw();
  } catch (error) { trouble(error); }
}

function describe() {
  const now = state.moment, peak = now.place === device().peak ? " · the peak" : "";
  const when = now.ts_ns === null || now.ts_ns === undefined ? "" : ` · ${duration(now.ts_ns)}`;
  $("when").textContent = `${now.place ? `After event ${now.place.toLocaleString("en")}` : "Before the first event"}${when}: ${amount(now.allocated, "bytes")} in use, ${amount(now.reserved, "bytes")} reserved${peak}`;
  legend();
  if (!now.holders) {
    panel.hidden = true;
    return;
  }
  const swatch = (group) => `<svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" fill="${colours().groups[group]}"/></svg>`;
  const rows = now.holders.map((one) => {
    const cell = element("td", { class: "text", title: one.line });
    cell.innerHTML = swatch(one.group);
    cell.append(one.stack === null ? one.line : element("button", { type: "button", onclick: () => showStack(one.stack, `${amount(one.bytes, "bytes")} in ${one.blocks.toLocaleString("en")} blocks`) }, one.line));
    return element("tr", {}, cell, element("td", { class: "number" }, one.blocks.toLocaleString("en")), element("td", { class: "number" }, amount(one.bytes, "bytes")));
  });
  const head = element("thead", {}, element("tr", {}, ...["held by", "blocks", "bytes"].map((text, i) => element("th", { scope: "col", class: i ? "number" : "text" }, text))));
  panel.replaceChildren(element("div", { id: "memory-stack" }, ...eventOf(now)), element("table", {}, head, element("tbody", {}, ...rows)));
  if (now.holders_left_out) panel.append(element("p", { class: "quiet" }, `${now.holders_left_out.toLocaleString("en")} more stacks`));
  if (now.blocks_left_out) panel.append(element("p", { class: "quiet" }, `${now.blocks_left_out.toLocaleString("en")} smaller blocks are not drawn`));
}

function eventOf(now) {
  if (!now.event) return [];
  const text = `${now.event.action} of ${amount(now.event.bytes ?? 0, "bytes")}`;
  return [element("p", { class: "quiet" }, "The event: ", now.event.stack === null ? text : element("button", { type: "button", onclick: () => showStack(now.event.stack, text) }, text))];
}

function legend() {
  const names = device().groups[state.by], full = device().full[state.by], colour = colours();
  $("legend").replaceChildren(...names.map((name, i) => {
    const bytes = state.moment?.groups[i] ?? 0, item = element("li", { title: full[i] });
    item.innerHTML = `<svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" fill="${colour.groups[i]}"/></svg>`;
    item.append(name + " ", element("b", {}, amount(bytes, "bytes")));
    item.hidden = !bytes;
    return item;
  }));
}

async function showStack(id, about) {
  try {
    const frames = id === null || id < 0 ? null : await source.stack(id);
    const listed = (some) => element("ol", {}, ...some.map((frame) => element("li", {}, frame)));
    // Python's frames say where in the job it was; those of C++ are there for who wants them.
    const own = frames?.filter((frame) => /\.py(:\d+)?\)$/.test(frame)).reverse() ?? [], every = [...(frames ?? [])].reverse();
    const isPart = own.length > 0 && own.length < every.length;
    const list = frames ? [listed(own.length ? own : every), ...(isPart ? [element("details", {}, element("summary", { class: "quiet" }, `all ${every.length} frames`), listed(every))] : [])] : [element("p", { class: "quiet" }, "No stack was recorded: it was allocated before the history began.")];
    const target = $("stack");
    target.replaceChildren(element("h3", {}, about), ...list);
    panel.scrollTop = 0;
  } catch (error) { trouble(error); }
}

function remember() {
  const set = (name, value) => (value === "" ? parameters.delete(name) : parameters.set(name, value));
  if (embedded) return;
  set("snapshot", $("input").options.length > 1 ? state.input : "");
  set("device", state.layout.devices.length > 1 ? state.device : "");
  set("by", state.by === "stack" ? "stack" : "");
  set("axis", Object.keys(device().axes)[0] === state.axis ? "" : state.axis);
  set("place", state.moment.place === device().peak ? "" : state.moment.place);
  parameters.delete("at");
  const query = parameters.toString();
  history.replaceState(null, "", location.pathname + (query ? "?" + query : ""));
}

// ---- hands

const valueAt = (x) => state.from + ((x - LEFT) / (levels.clientWidth - LEFT)) * (state.to - state.from);

function pixelAt(x) {
  const data = state.data;
  if (!data || data.way !== way() || x < LEFT) return -1;
  const i = Math.floor(((valueAt(x) - data.low) / (data.high - data.low)) * data.pixels);
  const [first, last] = device().axes[state.axis], at = data.low + (i * (data.high - data.low)) / data.pixels;
  return i >= 0 && i < data.pixels && at < last && at + (data.high - data.low) / data.pixels > first ? i : -1;
}

function zoom(factor, x = (LEFT + levels.clientWidth) / 2) {
  const middle = valueAt(Math.max(x, LEFT));
  go(middle - (middle - state.from) * factor, middle + (state.to - middle) * factor);
}

function pan(ratio) {
  go(state.from + (state.to - state.from) * ratio, state.to + (state.to - state.from) * ratio);
}

function hover(event) {
  const i = pixelAt(event.offsetX), data = state.data;
  tip.hidden = i < 0;
  if (i < 0) return;
  const width = levels.clientWidth, lines = [`${amount(data.most[i], "bytes")} in use at most, ${amount(data.reserved[i], "bytes")} reserved`];
  const names = device().groups[state.by];
  const held = names.map((name, k) => [data.parts[k * data.pixels + i], name]).filter(([bytes]) => bytes > 0).sort((a, b) => b[0] - a[0]).slice(0, 6);
  tip.replaceChildren(...[lines[0], ...held.map(([bytes, name]) => `${amount(bytes, "bytes")} ${name}`)].map((text) => element("div", {}, text)));
  tip.style.left = `${event.offsetX > width / 2 ? Math.max(event.offsetX - tip.offsetWidth - 12, 0) : event.offsetX + 14}px`;
  tip.style.top = `${Math.max(Math.min(event.offsetY + 10, levels.clientHeight - tip.offsetHeight - 4), 4)}px`;
}

levels.addEventListener("pointerdown", (event) => {
  dragged = { x: event.offsetX, from: state.from, to: state.to, moved: false };
  levels.setPointerCapture(event.pointerId);
});
levels.addEventListener("pointermove", (event) => {
  if (!dragged) return hover(event);
  if (Math.abs(event.offsetX - dragged.x) > 3) dragged.moved = true;
  const by = ((dragged.x - event.offsetX) / (levels.clientWidth - LEFT)) * (dragged.to - dragged.from);
  if (dragged.moved) go(dragged.from + by, dragged.to + by);
});
levels.addEventListener("pointerup", (event) => {
  const i = dragged && !dragged.moved ? pixelAt(event.offsetX) : -1;
  dragged = null;
  if (i >= 0) choose({ place: state.data.at[i] });
});
levels.addEventListener("pointerleave", () => { tip.hidden = true; });
levels.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.shiftKey) return;
  event.preventDefault();
  if (event.shiftKey) pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
  else zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
}, { passive: false });
levels.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const middle = () => { const i = pixelAt((LEFT + levels.clientWidth) / 2); if (i >= 0) choose({ place: state.data.at[i] }); };
  const keys = { w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => pan(-0.25), d: () => pan(0.25), ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25), 0: whole, Enter: middle };
  const act = keys[event.key] ?? keys[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
});
space?.addEventListener("click", (event) => {
  const box = state.boxes.findLast((one) => event.offsetX >= one.left - 0.5 && event.offsetX <= Math.max(one.right, one.left + 1) + 0.5 && event.offsetY >= one.y && event.offsetY <= one.y + ROW);
  if (!box) return;
  state.picked = box.address;
  showStack(box.stack, `${amount(box.bytes, "bytes")}${box.made ? `, allocated by event ${box.made.toLocaleString("en")}` : ""}`);
  redraw();
});
$("all").addEventListener("click", whole);
$("peak").addEventListener("click", () => {
  const at = device().peaks[state.axis], length = state.to - state.from;
  if (at < state.from || at > state.to) go(at - length / 2, at + length / 2);
  choose({ place: device().peak });
});
const again = () => choose({ place: state.moment.place }).then(ask).catch(trouble);
$("by").addEventListener("change", () => { state.by = $("by").value; again(); });
$("axis").addEventListener("change", () => { parameters.set("axis", $("axis").value); const { place } = state.moment; parameters.set("place", place); ofDevice().catch(trouble); });
$("device").addEventListener("change", () => { state.device = Number($("device").value); parameters.delete("place"); ofDevice().catch(trouble); });
$("input").addEventListener("change", () => { state.input = Number($("input").value); parameters.delete("place"); parameters.delete("device"); load().catch(trouble); });
$("step").addEventListener("change", () => {
  const step = (state.layout.steps ?? [])[Number($("step").value)];
  if ($("step").value === "" || !step) return whole();
  if (state.axis !== "time") return undefined;
  go(step[1] - step[2] * 0.05, step[1] + step[2] * 1.05);
  return choose({ x: Math.max(step[1], 0) });
});
start().catch(trouble);
