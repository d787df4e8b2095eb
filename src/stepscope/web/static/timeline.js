// The timeline: what is shown (and in the address), what the hands do, when data is asked for.
import { draw, LABELS, palette, RULER, shadeOf, amount } from "./draw.js";
import { LANE, offsetsOf, rowsOf, usualAlignment } from "./layout.js";
import { markChoices, marksOf } from "./marks.js";
import { element, showDetails, showMark, showMarks, showStatistics } from "./panel.js";
import { duration, embeddedSource, serverSource } from "./source.js";

const $ = (id) => document.getElementById(id);
const canvas = $("canvas"), context = canvas.getContext("2d"), panel = $("details"), tip = $("tip");
const parameters = new URLSearchParams(location.search);
const state = {
  traces: [], rows: { pinned: [], rows: [] }, data: new Map(), from: 0, to: 1, scroll: 0, width: 0, height: 0, range: null,
  selected: null, sought: null, folded: new Set(split("fold")), pinned: new Set(split("pin")), colours: {}, palette: [],
  marks: [], mark: null, flags: [], // rows of a table, the one stepped to, what is measured between
  hidden: new Set(split("hide")), unseen: new Set(), // kinds of the legend, and numbers of their categories
};
const search = { q: "", exact: false, hits: [], at: -1 };
const asked = new Map();
const marking = { query: "", hits: [], elsewhere: [], count: 0, total: "" };
let source, bounds = [0, 1], framed = false, pointer = 0, addressTimer = 0, askTimer = 0;
// What was asked for last is what the panel shows, in whatever order the answers come.
let askedLast = 0, opening = Promise.resolve();

function split(name) {
  return (parameters.get(name) ?? "").split(",").filter(Boolean).map(decodeURIComponent);
}

function trouble(error) {
  if (error?.name === "AbortError") return;
  $("trouble").textContent = error.message ?? String(error);
  $("trouble").hidden = false;
}

// ---- start

async function start() {
  const embedded = $("embedded");
  source = embedded ? await embeddedSource(embedded) : serverSource(document.body.dataset.root || "", state.hidden);
  const chosen = (parameters.get("t") ?? "").split(",").filter(Boolean).map(Number);
  let indices = chosen.length ? chosen : [...document.querySelectorAll("#inputs input")].map((box) => Number(box.value));
  if (embedded) indices = JSON.parse(embedded.dataset.layouts).map((_, i) => i);
  if (!indices.length) indices = [0];
  if (!chosen.length && indices.length > 8) indices = indices.slice(0, 8);
  // A trace that cannot be drawn gets a message; the rest are drawn.
  const results = await Promise.allSettled(indices.map((index) => source.layout(index)));
  const failed = results.filter((one) => one.status === "rejected");
  if (failed.length) trouble(failed[0].reason);
  if (failed.length === results.length) return;
  state.traces = indices.map((index, i) => ({ index, layout: results[i].value, offset: 0 })).filter((one) => one.layout && !one.layout.snapshot);
  if (!state.traces.length) {
    trouble(new Error("A memory snapshot has no timeline; its memory over time is on the page Memory."));
    return;
  }
  const layouts = state.traces.map((one) => one.layout);
  align(parameters.get("align") ?? usualAlignment(layouts));
  fillSteps();
  fillLegend();
  themeChanged();
  resize();
  place();
  if (parameters.get("range")) {
    const [low, high] = parameters.get("range").split("-").map(Number);
    if (Number.isFinite(low) && high > low) select([low, high]);
  }
  if (parameters.get("q")) {
    $("find").value = parameters.get("q");
    await find(parameters.get("q"), Boolean(parameters.get("exact")), !parameters.get("from"));
  }
  if ($("marks")) {
    fillMarks(parameters.get("marks") ?? "");
    if (parameters.get("marks")) await mark(parameters.get("marks"));
  }
  if (parameters.get("span")) await open(Number(parameters.get("of") ?? state.traces[0].index), Number(parameters.get("span")), !parameters.get("from"));
  document.documentElement.dataset.timeline = "ready";
}

function align(how) {
  offsetsOf(state.traces.map((one) => one.layout), how, $("step").value || parameters.get("step")).forEach((offset, i) => { state.traces[i].offset = offset; });
  if ($("align")) $("align").value = how;
  bounds = [Math.min(...state.traces.map((one) => one.layout.first_ns + one.offset)), Math.max(...state.traces.map((one) => one.layout.last_ns + one.offset))];
}

function place() {
  const low = Number(parameters.get("from") ?? NaN), high = Number(parameters.get("to") ?? NaN);
  const step = parameters.get("step") && state.traces[0].layout.steps.find(([number]) => String(number) === parameters.get("step"));
  if (step) $("step").value = parameters.get("step");
  if (high > low) go(low, high);
  else if (step) goToStep(step);
  else whole();
}

function goToStep([, low, length]) {
  const start = low + state.traces[0].offset;
  go(start - length * 0.03, start + length * 1.03);
}

function whole() {
  const margin = (bounds[1] - bounds[0]) * 0.01 + 1;
  go(bounds[0] - margin, bounds[1] + margin);
}

function fillSteps() {
  const trace = state.traces[0];
  for (const [step, , length] of trace.layout.steps.slice(0, 1000)) {
    const option = document.createElement("option");
    option.value = step;
    option.textContent = `${step} (${duration(length)})`;
    $("step").append(option);
  }
  $("step").disabled = !trace.layout.steps.length;
}

// The kinds that any of the traces has. A click hides one, with Shift all others.
function fillLegend() {
  const kinds = new Map(state.traces.flatMap((one) => one.layout.legend).map((kind) => [kind.label, kind]));
  $("legend").replaceChildren(...[...kinds.values()].map(({ label, colour }) => {
    const swatch = element("i", {});
    swatch.style.background = colour;
    return element("button", { type: "button", "aria-pressed": String(!state.hidden.has(label)), title: "Hide or show. With Shift: this one alone, or all",
      onclick: (event) => choose(label, event.shiftKey, [...kinds.keys()]) }, swatch, label);
  }));
  const categories = state.traces[0].layout.categories;
  state.unseen = new Set([...state.hidden].flatMap((label) => kinds.get(label)?.categories ?? []).map((name) => categories.indexOf(name)));
}

async function choose(label, alone, labels) {
  const rest = labels.filter((one) => one !== label);
  if (alone) {
    const hides = !rest.every((one) => state.hidden.has(one)) || state.hidden.has(label);
    state.hidden.clear();
    if (hides) rest.forEach((one) => state.hidden.add(one));
  } else if (!state.hidden.delete(label)) state.hidden.add(label);
  fillLegend();
  remember();
  if (!$("embedded")) {
    try {
      const layouts = await Promise.all(state.traces.map((one) => source.layout(one.index)));
      state.traces.forEach((one, i) => { one.layout = layouts[i]; });
      asked.forEach((one) => one.controller.abort());
      asked.clear();
      layRows();
    } catch (error) { trouble(error); }
  }
  redraw();
}

function themeChanged() {
  const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
  const dark = colour("--is-dark") === "1";
  state.colours = {
    back: colour("--panel"), panel: colour("--panel"), text: colour("--text"), quiet: colour("--quiet"), line: colour("--line"), lane: colour("--lane"),
    accent: colour("--accent"), onSpan: dark ? "#f3f6f9" : "#10161c", match: dark ? "#ffd24d" : "#c25700", arrow: dark ? "#ffb454" : "#b34700",
    range: dark ? "rgb(116 182 242 / 14%)" : "rgb(11 95 165 / 10%)", step: dark ? "rgb(255 255 255 / 13%)" : "rgb(0 0 0 / 14%)",
  };
  state.palette = palette(dark, state.traces[0]?.layout.categories ?? [], state.traces.flatMap((one) => one.layout.legend));
  redraw();
}

// ---- drawing and data

function redraw() {
  if (framed) return;
  framed = true;
  requestAnimationFrame(() => {
    framed = false;
    if (state.width > LABELS && state.traces.length) draw(context, state);
  });
}

function resize() {
  const ratio = window.devicePixelRatio || 1, box = canvas.parentElement.getBoundingClientRect();
  [state.width, state.height] = [box.width, box.height];
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  layRows();
}

function layRows() {
  state.rows = rowsOf(state.traces, state.folded, state.pinned);
  scrollTo(state.scroll);
}

function room() {
  return state.height - RULER - state.rows.pinned.total;
}

function scrollTo(y) {
  state.scroll = Math.min(Math.max(y, 0), Math.max(state.rows.rows.total - room(), 0));
  ask();
  redraw();
}

function go(low, high) {
  const least = 20, most = (bounds[1] - bounds[0]) * 4 + 1000;
  let length = Math.min(Math.max(high - low, least), most);
  let from = (low + high) / 2 - length / 2;
  from = Math.min(Math.max(from, bounds[0] - length * 0.8), bounds[1] - length * 0.2);
  [state.from, state.to] = [from, from + length];
  remember();
  ask();
  redraw();
}

// A window is asked for with half of it on either side, so that small moves need no answer.
function ask() {
  clearTimeout(askTimer);
  askTimer = setTimeout(askNow, 15);
}

function askNow() {
  const length = state.to - state.from, ready = Math.min(Math.round((state.width - LABELS) * 2), 8000);
  for (const trace of state.traces) {
    const { tracks, flat } = visibleTracks(trace);
    const low = Math.floor(state.from - length / 2 - trace.offset), high = Math.ceil(state.to + length / 2 - trace.offset);
    const pending = asked.get(trace.index);
    const have = pending?.wanted;
    const inside = have && have.low <= state.from - trace.offset - length * 0.1 && have.high >= state.to - trace.offset + length * 0.1;
    const near = have && (have.high - have.low) / (high - low) < 1.3 && (have.high - have.low) / (high - low) > 0.77;
    const all = have && tracks.every((id) => have.tracks.has(id)) && flat.every((id) => have.flat.has(id) || have.tracks.has(id));
    if (inside && near && all) continue;
    if (!tracks.length && !flat.length && have) continue;
    pending?.controller.abort();
    const controller = new AbortController();
    asked.set(trace.index, { wanted: { low, high, tracks: new Set(tracks), flat: new Set(flat) }, controller });
    source.window(trace.index, low, high, ready, tracks, flat, controller.signal).then((data) => received(trace, data), trouble);
  }
}

function visibleTracks(trace) {
  const tracks = [], flat = [], margin = state.height;
  const inView = (row) => row.pinned || (row.y + row.height > state.scroll - margin && row.y < state.scroll + room() + margin);
  for (const row of [...state.rows.pinned, ...state.rows.rows]) {
    if (row.kind === "track" && row.trace === trace && inView(row)) (row.folded ? flat : tracks).push(row.track.id);
  }
  return { tracks, flat };
}

function received(trace, data) {
  data.byTrack = new Map();
  data.lanes.forEach(([track, depth], lane) => {
    if (!data.byTrack.has(track)) data.byTrack.set(track, []);
    data.byTrack.get(track).push([lane, depth]);
  });
  data.shades = data.names.map(shadeOf);
  data.lowered = null;
  state.data.set(trace.index, data);
  document.documentElement.dataset.windows = Number(document.documentElement.dataset.windows ?? 0) + 1;
  redraw();
}

// ---- the address

function remember() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const set = (name, value) => (value ? parameters.set(name, value) : parameters.delete(name));
    leadToMemory();
    const isWhole = state.from <= bounds[0] && state.to >= bounds[1];
    set("from", isWhole ? "" : String(Math.floor(state.from)));
    set("to", isWhole ? "" : String(Math.ceil(state.to)));
    set("range", state.range ? state.range.map((time) => Math.round(time)).join("-") : "");
    set("span", state.selected ? String(state.selected.id) : "");
    set("of", state.selected && state.traces.length > 1 ? String(state.selected.trace) : "");
    set("q", search.q);
    set("marks", marking.query);
    set("exact", search.exact ? "1" : "");
    set("fold", [...state.folded].map(encodeURIComponent).join(","));
    set("pin", [...state.pinned].map(encodeURIComponent).join(","));
    set("hide", [...state.hidden].map(encodeURIComponent).join(","));
    set("align", $("align")?.value);
    const query = parameters.toString();
    try { history.replaceState(null, "", location.pathname + (query ? "?" + query : "")); } catch { /* a file's address cannot change everywhere */ }
  }, 250);
}

// The memory at the start of what is selected, of the chosen step, or else of the window.
function leadToMemory() {
  const trace = state.traces.find((one) => Number.isInteger(one.layout.memory)), link = $("to-memory");
  if (!link || !trace) return;
  const own = state.selected?.trace === trace.index ? state.selected.details : null;
  const step = trace.layout.steps.find(([number]) => String(number) === $("step").value)?.[1] + trace.offset;
  const start = step >= state.from && step < state.to ? step : Math.max(state.from, bounds[0]);
  const time = state.range?.[0] ?? (own ? own.ts_ns + trace.offset : start);
  const at = BigInt(trace.layout.origin_unix_ns) + BigInt(Math.round(time - trace.offset));
  link.href = `${document.body.dataset.root || ""}/memory?snapshot=${trace.layout.memory}&at=${at}`;
  link.hidden = false;
}

// ---- selecting

function open(index, id, zoom = false) {
  opening = opened(index, id, zoom);
  return opening;
}

async function opened(index, id, zoom) {
  const turn = (askedLast += 1);
  try {
    const details = await source.span(index, id);
    if (turn !== askedLast) return;
    const trace = state.traces.find((one) => one.index === index);
    state.selected = { trace: index, id, details };
    const zoomTo = () => show(trace, details.track, details.ts_ns, details.dur_ns, true, details.depth);
    showDetails(panel, details, (link) => open(index, link.id, false).then(() => show(trace, link.track, link.ts_ns, link.dur_ns, false, link.depth)),
      { zoom: zoomTo, measure: flag, alike: () => { $("find").value = details.name; find(details.name, true, false); } });
    if (zoom) zoomTo();
    remember();
    redraw();
  } catch (error) { trouble(error); }
}

// Brings a span into view: zooms where wanted or where it would be invisible.
function show(trace, track, start, length, zoom, depth = 0) {
  const low = start + trace.offset, now = state.to - state.from;
  if (zoom) go(low - length * 1.5 - 500, low + length * 2.5 + 500);
  else if (low < state.from || low + length > state.to || length / now * (state.width - LABELS) < 12) {
    const wide = length / now * (state.width - LABELS) < 12 || length > now ? Math.max(length * 20, 2000) : now;
    go(low + length / 2 - wide / 2, low + length / 2 + wide / 2);
  }
  for (const group of trace.layout.groups) {
    if (group.tracks.some((one) => one.id === track) && state.folded.delete(`${trace.index}.${group.label}`)) layRows();
  }
  const row = state.rows.rows.find((one) => one.kind === "track" && one.trace === trace && one.track.id === track);
  if (row) {
    const y = row.y + (row.folded ? 0 : depth * LANE);
    if (y < state.scroll || y + LANE > state.scroll + room()) scrollTo(y - room() / 3);
  }
}

async function select(range, measure = []) {
  const turn = (askedLast += 1);
  state.range = range;
  remember();
  redraw();
  try {
    const parts = await Promise.all(state.traces.map(async (trace) => {
      const low = Math.floor(range[0] - trace.offset), high = Math.max(Math.ceil(range[1] - trace.offset), low + 1);
      const title = trace.layout.rank === null ? trace.layout.label : `rank ${trace.layout.rank}`;
      return { title, sums: await source.statistics(trace.index, low, high), flames: flamesOf(trace, low, high) };
    }));
    if (turn === askedLast) showStatistics(panel, parts, (name) => { $("find").value = name; find(name, true, false); }, measure);
  } catch (error) { trouble(error); }
}

// ---- marks, and measuring between two

function fillMarks(own) {
  const choices = markChoices(state.traces, $("step").value, own);
  $("marks").replaceChildren(...choices.map(([label, value]) => element("option", { value }, label)));
  $("marks").value = own;
}

async function mark(query) {
  $("trouble").hidden = true;
  Object.assign(marking, { query, hits: [], elsewhere: [], count: 0, total: "" });
  [state.marks, state.mark] = [[], null];
  if (query) {
    $("hits").textContent = "…";
    try {
      const { marks, ...rest } = await marksOf(state.traces, source, query);
      if (marking.query !== query) return;
      Object.assign(marking, rest);
      state.marks = marks;
      listMarks();
    } catch (error) { trouble(error); }
  }
  if (!search.q) useMarks();
  remember();
  redraw();
}

// Without a search, what one steps through are the marks.
function useMarks() {
  Object.assign(search, { hits: marking.hits, at: -1, count: marking.count, total: marking.total });
  tellHits();
}

function listMarks() {
  showMarks(panel, $("marks").selectedOptions[0]?.textContent ?? "marks", marking.hits, marking.elsewhere, (one) => goToMark(one));
}

async function goToMark(one) {
  state.mark = one;
  if (!search.q) search.at = search.hits.indexOf(one);
  tellHits();
  show(one.trace, one.track, one.start, one.length, false, one.depth);
  if (one.id === null) {
    state.selected = null;
    panel.replaceChildren();
  } else await open(one.trace.index, one.id);
  if (state.mark !== one) return;
  showMark(panel, one, listMarks);
  redraw();
}

// The first key press marks one end, the second the other: of the selected span, else of the mark, else at the pointer.
// A span that was chosen just before is waited for.
async function flag() {
  await opening;
  const own = state.selected?.details, at = state.mark?.trace ?? state.traces.find((one) => one.index === state.selected?.trace);
  const place = state.mark ? { ts_ns: state.mark.start, dur_ns: state.mark.length, name: state.mark.name } : own;
  const time = pointer || (state.from + state.to) / 2;
  const end = place ? { start: place.ts_ns + at.offset, end: place.ts_ns + place.dur_ns + at.offset, name: place.name } : { start: time, end: time, name: "the pointer" };
  state.flags = (state.flags.length === 1 ? [...state.flags, end] : [end]).sort((a, b) => a.start - b.start);
  redraw();
  if (state.flags.length < 2) {
    $("hits").textContent = "A is set; select another span and press M";
    return;
  }
  const [a, b] = state.flags;
  const range = [a.start, b.start > a.start ? b.start : Math.max(a.end, b.end, a.start + 1)].map(Math.round);
  tellHits();
  select(range, [["A", a.name], ["B", b.name], ["start to start", duration(b.start - a.start)], ["end to start", duration(b.start - a.end)], ["start to end", duration(b.end - a.start)]]);
}

// Addresses of flame graphs of a range; a report in one file has none.
function flamesOf(trace, low, high) {
  if ($("embedded")) return {};
  const address = (of) => `${document.body.dataset.root || ""}/tables/call-stacks?${new URLSearchParams({ t: trace.index, "o.of": of, "o.begin_ns": low, "o.end_ns": high })}`;
  const kinds = new Set(trace.layout.legend.map((kind) => kind.label));
  return { host: address("host"), ...(kinds.has("computation") || kinds.has("communication") || kinds.has("copies") ? { device: address("device") } : {}) };
}

// ---- finding

async function find(q, exact = false, jump = true) {
  Object.assign(search, { q, exact, hits: [], at: -1 });
  if (!q) {
    state.sought = null;
    useMarks();
    remember();
    redraw();
    return;
  }
  const lower = q.toLowerCase();
  state.sought = {
    has(code, data) {
      data.lowered ??= data.names.map((name) => name.toLowerCase());
      return exact ? data.names[code] === q || (q.length > 399 && q.startsWith(data.names[code].slice(0, -1))) : data.lowered[code].includes(lower);
    },
  };
  try {
    const matches = await Promise.all(state.traces.map(async (trace) => ({ trace, ...(await source.search(trace.index, q, exact)) })));
    if (search.q !== q) return;
    search.hits = matches.flatMap((one) => one.hits.map(([id, track, start, length]) => ({ trace: one.trace, id, track, start, length })));
    search.hits.sort((a, b) => a.start + a.trace.offset - b.start - b.trace.offset);
    search.count = matches.reduce((sum, one) => sum + one.count, 0);
    search.total = matches.map((one) => one.total).join(" + ");
    if (search.hits.length && jump) {
      const best = search.hits.reduce((most, hit, i) => (hit.length > search.hits[most].length ? i : most), 0);
      await step(best - search.at, true);
    } else tellHits();
  } catch (error) { trouble(error); }
  remember();
  redraw();
}

function tellHits() {
  const { hits, at, count, total } = search;
  if (!search.q) {
    const some = count > hits.length ? `the longest ${hits.length} of ${count.toLocaleString("en")}` : `${count}`;
    $("hits").textContent = !marking.query ? "" : !count ? "no marks here" : `${at >= 0 ? `${at + 1} of ` : ""}${some}${total && ` · ${total}`}`;
    return;
  }
  $("hits").textContent = !count ? "nothing found" : `${at >= 0 ? `${(at + 1).toLocaleString("en")} of ` : ""}${count.toLocaleString("en")} · ${total}${count > hits.length ? " (first 20,000 can be stepped through)" : ""}`;
}

async function step(by, zoom = false) {
  const { hits } = search;
  if (!hits.length) return;
  if (search.at < 0 && !zoom) {
    const middle = state.range?.[0] ?? state.from;
    const next = hits.findIndex((hit) => hit.start + hit.trace.offset >= middle);
    search.at = by > 0 ? (next < 0 ? 0 : next) : (next <= 0 ? hits.length : next) - 1;
  } else search.at = (((search.at + by) % hits.length) + hits.length) % hits.length;
  const hit = hits[search.at];
  if (hit.facts) return goToMark(hit);
  tellHits();
  show(hit.trace, hit.track, hit.start, hit.length, false);
  await open(hit.trace.index, hit.id);
  const depth = state.selected?.details?.depth ?? 0;
  show(hit.trace, hit.track, hit.start, hit.length, false, depth);
}

// ---- hands

const timeAt = (x) => state.from + ((x - LABELS) / (state.width - LABELS)) * (state.to - state.from);

function zoom(factor, x = (LABELS + state.width) / 2) {
  const middle = timeAt(Math.max(x, LABELS));
  go(middle - (middle - state.from) * factor, middle + (state.to - middle) * factor);
}

function pan(ratio) {
  const by = (state.to - state.from) * ratio;
  go(state.from + by, state.to + by);
}

function rowAt(y) {
  if (y < RULER) return null;
  const top = y - RULER;
  if (top < state.rows.pinned.total) return { row: state.rows.pinned.find((one) => top >= one.y && top < one.y + one.height), inside: top };
  const inside = top - state.rows.pinned.total + state.scroll;
  return { row: state.rows.rows.find((one) => inside >= one.y && inside < one.y + one.height), inside };
}

// What is under the pointer: a span, a bar of short ones, a sample, a row.
function under(x, y) {
  const place = rowAt(y);
  if (!place?.row) return null;
  const { row, inside } = place;
  const data = state.data.get(row.trace.index);
  if (x < LABELS || row.kind === "group" || !data) return { row };
  const time = timeAt(x) - row.trace.offset - data.low, slack = ((state.to - state.from) / (state.width - LABELS)) * 1.5;
  const pixel = Math.floor((time / (data.high - data.low)) * data.pixels);
  if (row.kind === "line") {
    let last = data.before[row.at];
    for (let i = 0; i < data.line.length; i++) if (data.line[i] === row.at && data.line_pixel[i] <= pixel) last = data.line_last[i];
    return { row, value: last };
  }
  const depth = row.folded ? 0 : Math.floor((inside - row.y - 1) / LANE);
  const lane = (data.byTrack.get(row.track.id) ?? []).find(([, d]) => d === depth)?.[0];
  if (lane === undefined) return { row };
  let low = data.spans[lane], high = data.spans[lane + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.start[middle] <= time + slack) low = middle + 1;
    else high = middle;
  }
  for (let i = low - 1; i >= Math.max(low - 2, data.spans[lane]); i--) {
    if (data.start[i] <= time + slack && data.start[i] + data.dur[i] >= time - slack) return { row, data, span: i };
  }
  for (let i = data.bars[lane]; i < data.bars[lane + 1]; i++) if (Math.abs(data.bar_pixel[i] - pixel) <= 1) return { row, data, bar: i };
  return { row };
}

function hover(x, y) {
  const target = under(x, y);
  canvas.style.cursor = target?.span !== undefined || target?.bar !== undefined || x < LABELS ? "pointer" : "default";
  let lines = null;
  if (target?.span !== undefined) {
    const { data, span } = target;
    lines = [data.names[data.name[span]], `${duration(data.dur[span])} · ${target.row.trace.layout.categories[data.category[span]]}`];
  } else if (target?.bar !== undefined) {
    const { data, bar } = target, n = data.bar_count[bar];
    lines = [`${n > 1 ? `${n} short spans` : "a short span"}, busy ${Math.round(data.bar_busy[bar] * 100)} %`, "click to zoom in"];
  } else if (target?.value !== undefined && target.value !== null) lines = [amount(target.value, target.row.line.unit), target.row.label];
  else if (target?.row && x < LABELS) lines = [target.row.label];
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.flatMap((line, i) => (i ? [document.createElement("br"), line] : [line])));
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(Math.min(x + 14, state.width - box.width - 6), 4) + "px";
  tip.style.top = Math.min(y + 16, state.height - box.height - 6) + "px";
}

function toggle(set, key) {
  if (!set.delete(key)) set.add(key);
  layRows();
  remember();
}

function click(x, y) {
  const target = under(x, y);
  if (!target) return;
  const { row } = target;
  if (x >= LABELS) state.mark = null;
  if (x < LABELS || row.kind === "group") {
    if (row.kind === "track" && x > LABELS - 22) toggle(state.pinned, row.key);
    else if (row.kind !== "line") toggle(state.folded, row.key);
  } else if (target.span !== undefined) open(row.trace.index, target.data.id[target.span]);
  else if (target.bar !== undefined) {
    if (target.data.bar_count[target.bar] === 1 && (state.to - state.from) < 200) open(row.trace.index, target.data.bar_id[target.bar]);
    else zoom(1 / 8, x);
  } else if (state.selected) {
    state.selected = null;
    remember();
    redraw();
  }
}

let drag = null;
canvas.addEventListener("pointerdown", (event) => {
  const ranging = event.shiftKey || (event.offsetY < RULER && event.offsetX > LABELS);
  drag = { x: event.offsetX, y: event.offsetY, from: state.from, to: state.to, scroll: state.scroll, ranging, moved: false };
  canvas.setPointerCapture(event.pointerId);
  canvas.focus({ preventScroll: true });
});
canvas.addEventListener("pointermove", (event) => {
  pointer = timeAt(Math.max(event.offsetX, LABELS));
  if (!drag) return hover(event.offsetX, event.offsetY);
  const dx = event.offsetX - drag.x, dy = event.offsetY - drag.y;
  if (!drag.moved && Math.abs(dx) + Math.abs(dy) < 4) return undefined;
  drag.moved = true;
  tip.hidden = true;
  if (drag.ranging) {
    state.range = [timeAt(Math.max(Math.min(drag.x, event.offsetX), LABELS)), timeAt(Math.max(drag.x, event.offsetX))];
    redraw();
  } else {
    const by = (-dx / (state.width - LABELS)) * (drag.to - drag.from);
    go(drag.from + by, drag.to + by);
    scrollTo(drag.scroll - dy);
  }
  return undefined;
});
canvas.addEventListener("pointerup", (event) => {
  const done = drag;
  drag = null;
  if (!done) return;
  if (!done.moved) click(event.offsetX, event.offsetY);
  else if (done.ranging && state.range) select([Math.round(state.range[0]), Math.round(state.range[1])]);
});
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
canvas.addEventListener("dblclick", (event) => {
  const target = under(event.offsetX, event.offsetY);
  if (target?.span !== undefined) show(target.row.trace, target.row.track.id, target.data.low + target.data.start[target.span], target.data.dur[target.span], true);
});
canvas.addEventListener("wheel", (event) => {
  // In a report the wheel moves the page, unless a key says otherwise.
  const plain = !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if ($("embedded") && plain) return;
  event.preventDefault();
  const unit = event.deltaMode === 1 ? 30 : 1;
  if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY * unit * 0.0022), event.offsetX);
  else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((event.deltaX || event.deltaY) * unit) / (state.width - LABELS));
  else if (state.rows.rows.total > room()) scrollTo(state.scroll + event.deltaY * unit);
  else zoom(Math.exp(event.deltaY * unit * 0.0022), event.offsetX);
}, { passive: false });

const KEYS = {
  w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => pan(-0.2), d: () => pan(0.2), ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
  ArrowUp: () => scrollTo(state.scroll - 60), ArrowDown: () => scrollTo(state.scroll + 60), 0: whole, n: () => step(1), p: () => step(-1), m: flag, Enter: () => step(1),
  "/": () => $("find").focus(), "+": () => zoom(0.6), "-": () => zoom(1 / 0.6),
  f: () => {
    if (state.range) return go(...state.range);
    const own = state.selected?.details;
    const trace = own && state.traces.find((one) => one.index === state.selected.trace);
    return trace && show(trace, own.track, own.ts_ns, own.dur_ns, true, own.depth);
  },
  Escape: () => {
    askedLast += 1;
    [state.range, state.selected, state.mark, state.flags] = [null, null, null, []];
    $("find").value = "";
    find("");
    panel.replaceChildren();
    if (marking.query) listMarks();
  },
};
$("find").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  KEYS.Escape();
  canvas.focus({ preventScroll: true });
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (!KEYS[key] || (key.length > 1 && key !== "Escape" && event.target !== canvas)) return;
  event.preventDefault();
  KEYS[key]();
});

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const q = $("find").value;
  if (q === search.q && search.hits.length) step(1);
  else find(q);
  canvas.focus({ preventScroll: true });
});
$("find").addEventListener("search", () => { if (!$("find").value) find(""); });
$("next").addEventListener("click", () => (search.q === $("find").value ? step(1) : find($("find").value)));
$("previous").addEventListener("click", () => step(-1));
$("all").addEventListener("click", whole);
$("align")?.addEventListener("change", () => { align($("align").value); asked.clear(); layRows(); whole(); });
$("marks")?.addEventListener("change", () => mark($("marks").value));
$("step").addEventListener("change", () => {
  const chosen = state.traces[0].layout.steps.find(([step]) => String(step) === $("step").value);
  if ($("align")?.value === "step") align("step");
  if ($("marks")) {
    // The critical path is that of the chosen step.
    const isPath = marking.query.startsWith("table=critical-path");
    fillMarks(isPath ? markChoices(state.traces, $("step").value, "")[2][1] : marking.query);
    if (isPath) mark($("marks").value);
  }
  return chosen ? goToStep(chosen) : whole();
});
$("keys").addEventListener("click", () => {
  $("help").hidden = !$("help").hidden;
  $("keys").setAttribute("aria-expanded", String(!$("help").hidden));
});
new ResizeObserver(() => state.traces.length && resize()).observe(canvas.parentElement);
document.addEventListener("themechange", themeChanged);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themeChanged);
start().catch(trouble);
