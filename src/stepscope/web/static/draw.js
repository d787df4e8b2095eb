// Draws the timeline on a canvas. Times go to x by the window alone, so that old data can be shown until new data is there.
import { LANE } from "./layout.js";
import { drawFlags, drawMarks } from "./marks.js";
import { duration } from "./source.js";

export const LABELS = 210, RULER = 40;
const SHADES = 5;

// Shades of each category: the colour of its kind in the legend, mixed with white or black so that letters can be read on it.
export function palette(dark, categories, legend) {
  const colours = new Map(legend.flatMap((kind) => kind.categories.map((name) => [name, kind.colour])));
  return categories.map((name) => Array.from({ length: SHADES }, (_, k) => mixed(colours.get(name) ?? "#7f7f7f", dark ? 0 : 255, (dark ? 0.38 : 0.46) + (k - 2) * 0.055)));
}

function mixed(hex, ground, ratio) {
  const parts = [1, 3, 5].map((i) => Math.round(parseInt(hex.slice(i, i + 2), 16) * (1 - ratio) + ground * ratio));
  return `rgb(${parts.join(" ")})`;
}

export function shadeOf(name) {
  let sum = 0;
  for (let i = 0; i < name.length; i++) sum = (sum * 31 + name.charCodeAt(i)) >>> 0;
  return sum % SHADES;
}

export function draw(context, state) {
  const { width, height, colours, from, to } = state;
  const scale = (width - LABELS) / (to - from);
  const at = (time) => LABELS + (time - from) * scale;
  context.clearRect(0, 0, width, height);
  context.font = "11.5px system-ui, sans-serif";
  context.textBaseline = "middle";
  const pinned = Math.min(state.rows.pinned.total, Math.max(height - RULER - 60, 0));
  clipped(context, 0, RULER + pinned, width, height - RULER - pinned, () => {
    for (const row of state.rows.rows) {
      const y = RULER + pinned + row.y - state.scroll;
      if (y + row.height > RULER + pinned && y < height) drawRow(context, state, row, y, at, scale);
    }
  });
  if (pinned) {
    clipped(context, 0, RULER, width, pinned, () => {
      context.fillStyle = colours.back;
      context.fillRect(0, RULER, width, pinned);
      for (const row of state.rows.pinned) drawRow(context, state, row, RULER + row.y, at, scale);
    });
    rule(context, colours.accent, 0, RULER + pinned + 0.5, width);
  }
  drawSteps(context, state, at);
  drawRuler(context, state, at, scale);
  drawRange(context, state, at);
  clipped(context, LABELS, 0, width - LABELS, height, () => {
    drawMarks(context, state, at);
    drawArrows(context, state, at);
    drawFlags(context, state, at);
  });
  drawScrollbar(context, state, pinned);
}

function clipped(context, x, y, width, height, inside) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  inside();
  context.restore();
}

function rule(context, colour, x, y, width) {
  context.fillStyle = colour;
  context.fillRect(x, Math.round(y), width, 1);
}

function drawRow(context, state, row, y, at, scale) {
  const { colours, width } = state;
  if (row.kind === "group") {
    context.fillStyle = colours.lane;
    context.fillRect(0, y, width, row.height);
    context.fillStyle = colours.text;
    context.font = "600 12px system-ui, sans-serif";
    const room = row.withSteps ? LABELS - 12 : width;
    context.fillText(shortened(context, `${row.folded ? "▸" : "▾"} ${row.label}`, room), 8, y + row.height / 2);
    context.font = "11.5px system-ui, sans-serif";
    return;
  }
  clipped(context, LABELS, y, width - LABELS, row.height, () => {
    if (row.kind === "line") drawLine(context, state, row, y, at);
    else drawLanes(context, state, row, y, at, scale);
  });
  context.fillStyle = colours.panel;
  context.fillRect(0, y, LABELS, row.height);
  clipped(context, 0, y, LABELS - (row.kind === "track" ? 22 : 4), row.height, () => {
    context.fillStyle = colours.text;
    const mark = row.kind === "track" && row.track.lanes > 1 ? (row.folded ? "▸ " : "▾ ") : "  ";
    context.fillText(mark + row.label, 14, y + LANE / 2 + 2);
    if (row.kind === "line") {
      context.fillStyle = colours.quiet;
      context.fillText(`${amount(row.line.max, row.line.unit)} at most`, 22, y + LANE * 1.5 + 2);
    }
  });
  if (row.kind === "track") {
    context.fillStyle = row.pinned ? colours.accent : colours.line;
    context.beginPath();
    context.arc(LABELS - 12, y + LANE / 2 + 1, 4, 0, 7);
    context.fill();
  }
  rule(context, colours.line, 0, y + row.height - 1, width);
}

function drawLanes(context, state, row, y, at, scale) {
  const data = state.data.get(row.trace.index);
  if (!data) return;
  const shift = data.low + row.trace.offset, sought = state.sought;
  for (const [lane, depth] of data.byTrack.get(row.track.id) ?? []) {
    if (row.folded && depth > 0) continue;
    const top = y + 1 + depth * LANE;
    drawBars(context, state, data, lane, top, shift, at, scale);
    for (let i = data.spans[lane]; i < data.spans[lane + 1]; i++) {
      const x = at(shift + data.start[i]), length = data.dur[i] * scale;
      if (x > state.width || x + length < LABELS || state.unseen.has(data.category[i])) continue;
      const hit = sought && sought.has(data.name[i], data);
      context.globalAlpha = sought && !hit ? 0.4 : 1;
      context.fillStyle = state.palette[data.category[i]][data.shades[data.name[i]]];
      const left = Math.max(x, LABELS - 2), right = Math.min(x + length, state.width + 2);
      context.fillRect(left, top, Math.max(right - left - (right - left > 3 ? 0.6 : 0), 0.8), LANE - 2);
      if (right - left > 26) {
        context.fillStyle = state.colours.onSpan;
        context.fillText(fitting(context, data, data.name[i], right - left - 6), left + 3, top + LANE / 2 - 0.5);
      }
      if (hit || (state.selected && state.selected.trace === row.trace.index && state.selected.id === data.id[i])) {
        context.strokeStyle = hit ? state.colours.match : state.colours.text;
        context.lineWidth = 2;
        context.strokeRect(left + 1, top + 0.5, Math.max(right - left - 2, 1), LANE - 3);
      }
    }
    context.globalAlpha = 1;
  }
}

// A name in the width that there is. Widths are measured once for each name of a window.
function fitting(context, data, code, room) {
  const name = data.short[code];
  data.widths ??= new Float32Array(data.short.length);
  const wide = data.widths[code] ||= context.measureText(name).width;
  return wide <= room ? name : shortened(context, name, room, wide);
}

function shortened(context, text, room, wide = context.measureText(text).width) {
  if (wide <= room) return text;
  let length = Math.max(Math.floor((text.length * room) / wide), 1);
  while (length > 1 && context.measureText(text.slice(0, length) + "…").width > room) length--;
  return text.slice(0, length) + "…";
}

function drawBars(context, state, data, lane, top, shift, at, scale) {
  const pixel = (data.high - data.low) / data.pixels, wide = Math.max(pixel * scale, 0.7);
  context.globalAlpha = state.sought ? 0.4 : 0.8;
  for (let i = data.bars[lane]; i < data.bars[lane + 1]; i++) {
    const x = at(shift + data.bar_pixel[i] * pixel);
    if (x > state.width || x + wide < LABELS || state.unseen.has(data.bar_category[i])) continue;
    context.fillStyle = state.palette[data.bar_category[i]][1];
    const tall = Math.max(Math.min(data.bar_busy[i], 1), 0.12) * (LANE - 2);
    context.fillRect(x, top + LANE - 2 - tall, wide, tall);
  }
  context.globalAlpha = 1;
}

function drawLine(context, state, row, y, at) {
  const data = state.data.get(row.trace.index);
  if (!data) return;
  const most = Math.max(row.line.max, 0), least = Math.min(row.line.min, 0), tall = row.height - 6;
  const up = (value) => y + 3 + tall * (1 - (value - least) / (most - least || 1));
  const pixel = (data.high - data.low) / data.pixels, shift = data.low + row.trace.offset;
  context.strokeStyle = state.colours.accent;
  context.lineWidth = 1.2;
  context.beginPath();
  let before = data.before[row.at], x = at(shift);
  if (before !== null && before !== undefined) context.moveTo(x, up(before));
  for (let i = 0; i < data.line.length; i++) {
    if (data.line[i] !== row.at) continue;
    x = at(shift + data.line_pixel[i] * pixel);
    if (before === null || before === undefined) context.moveTo(x, up(data.line_last[i]));
    else context.lineTo(x, up(before));
    context.lineTo(x, up(data.line_min[i]));
    context.lineTo(x, up(data.line_max[i]));
    context.lineTo(x, up(data.line_last[i]));
    before = data.line_last[i];
  }
  if (before !== null && before !== undefined) context.lineTo(Math.min(at(shift + data.high - data.low), at(row.trace.layout.last_ns + row.trace.offset)), up(before));
  context.stroke();
}

// The steps of the first trace below the ruler, with lines through all rows; those of the others in the head of the trace.
function drawSteps(context, state, at) {
  const seen = new Set([state.traces[0]]);
  clipped(context, LABELS, RULER + state.rows.pinned.total, state.width - LABELS, state.height, () => {
    for (const row of state.rows.rows) {
      if (row.kind !== "group" || seen.has(row.trace)) continue;
      seen.add(row.trace);
      drawStepsOf(context, state, row.trace, at, RULER + state.rows.pinned.total + row.y - state.scroll + 3, state.colours.panel);
    }
  });
  clipped(context, LABELS, RULER - 18, state.width - LABELS, state.height, () => {
    for (const left of drawStepsOf(context, state, state.traces[0], at, RULER - 17, state.colours.lane)) {
      context.fillStyle = state.colours.step;
      context.fillRect(left, RULER, 1, state.height - RULER);
    }
  });
}

// Where they begin.
function drawStepsOf(context, state, trace, at, y, colour) {
  const lefts = [];
  for (const [step, start, length] of trace.layout.steps) {
    const left = at(start + trace.offset), right = at(start + length + trace.offset);
    if (right < LABELS || left > state.width || right - left < 3) continue;
    lefts.push(Math.round(left));
    context.fillStyle = colour;
    context.fillRect(left + 0.5, y, right - left - 1, 15);
    if (right - left <= 18) continue;
    context.fillStyle = state.colours.quiet;
    const text = right - left > 70 ? `step ${step}` : String(step);
    if (right - left > text.length * 6.5) context.fillText(text, Math.max(left, LABELS) + 4, y + 8);
  }
  return lefts;
}

function drawRuler(context, state, at, scale) {
  const { colours, width, from, to } = state;
  const rough = (110 / scale), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough) ?? power * 10;
  clipped(context, LABELS, 0, width - LABELS, RULER, () => {
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = at(time);
      context.fillStyle = colours.line;
      context.fillRect(Math.round(x), 6, 1, 14);
      context.fillStyle = colours.quiet;
      const text = tick(time, step);
      if (x + 4 + context.measureText(text).width < width) context.fillText(text, x + 4, 12);
    }
  });
  context.fillStyle = colours.quiet;
  context.fillText(`${duration(to - from)} shown`, 10, 12);
  rule(context, colours.line, 0, RULER - 1, width);
}

// Digits enough to tell neighbours apart.
function tick(time, step) {
  const [unit, factor] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]].find(([, f]) => Math.abs(time) >= f) ?? ["ns", 1];
  return (time / factor).toFixed(Math.min(Math.max(0, Math.ceil(Math.log10(factor / step))), 9)) + " " + unit;
}

function drawRange(context, state, at) {
  if (!state.range) return;
  const [low, high] = state.range, left = Math.max(at(low), LABELS), right = Math.min(at(high), state.width);
  if (right <= LABELS || left >= state.width) return;
  context.fillStyle = state.colours.range;
  context.fillRect(left, 0, Math.max(right - left, 1), state.height);
  context.fillStyle = state.colours.accent;
  for (const x of [at(low), at(high)]) if (x >= LABELS) context.fillRect(Math.round(x), 0, 1, state.height);
  const text = duration(high - low), wide = context.measureText(text).width + 8;
  context.fillRect(left, 2, wide, 18);
  context.fillStyle = state.colours.panel;
  context.fillText(text, left + 4, 12);
}

function drawArrows(context, state, at) {
  const own = state.selected;
  if (!own?.details) return;
  const tops = topsOf(state), from = placed(tops, own.trace, own.details, at);
  if (!from) return;
  context.lineWidth = 1.4;
  for (const link of own.details.links) {
    if (link.how === "inside" || link.ts_ns === null) continue;
    const to = placed(tops, own.trace, link, at);
    if (!to) continue;
    const towards = link.how === "launched by" || link.how === "operator";
    const [a, b] = towards ? [to, from] : [from, to];
    context.strokeStyle = state.colours.arrow;
    context.fillStyle = state.colours.arrow;
    context.setLineDash(link.how === "launches" || link.how === "launched by" ? [] : [4, 3]);
    context.beginPath();
    context.moveTo(a.x, a.y);
    context.bezierCurveTo(a.x, (a.y + b.y) / 2, b.x, (a.y + b.y) / 2, b.x, b.y);
    context.stroke();
    context.setLineDash([]);
    context.beginPath();
    context.arc(b.x, b.y, 3, 0, 7);
    context.fill();
  }
}

// Where each track is drawn now, by trace and track.
export function topsOf(state) {
  const tops = new Map();
  for (const row of [...state.rows.rows, ...state.rows.pinned]) {
    const top = row.pinned ? RULER + row.y : RULER + state.rows.pinned.total + row.y - state.scroll;
    if (row.kind === "track") tops.set(row.key, { top, folded: row.folded, pinned: row.pinned, offset: row.trace.offset });
  }
  return tops;
}

function placed(tops, index, span, at) {
  const row = tops.get(`${index}.${span.track}`);
  return row ? { x: at(span.ts_ns + row.offset), y: row.top + (row.folded ? 0 : (span.depth ?? 0)) * LANE + LANE / 2 } : null;
}

function drawScrollbar(context, state, pinned) {
  const room = state.height - RULER - pinned, total = state.rows.rows.total;
  if (total <= room) return;
  const tall = Math.max((room * room) / total, 24);
  context.fillStyle = state.colours.line;
  context.fillRect(state.width - 7, RULER + pinned + (state.scroll / (total - room)) * (room - tall), 5, tall);
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], TIMES = ["ns", "µs", "ms", "s"];

function scaled(value, units, factor) {
  let rest = value, at = 0;
  while (Math.abs(rest) >= factor && at < units.length - 1) [rest, at] = [rest / factor, at + 1];
  return `${Number(rest.toPrecision(3))} ${units[at]}`;
}

/** A value with its unit as people say it: 1.5 GiB, 2.4 MiB/s, 30 ms; time per time is a share. */
export function amount(value, unit) {
  if (unit === "bytes") return scaled(value, BYTES, 1024);
  if (unit === "bytes/s") return `${scaled(value, BYTES, 1024)}/s`;
  if (unit === "ns") return scaled(value, TIMES, 1000);
  if (unit === "ns/s") return `${Number((value / 1e7).toPrecision(3))} %`;
  return Number(value.toPrecision(3)).toLocaleString("en") + (unit && unit !== "count" ? ` ${unit}` : "");
}
