// Marks: rows of result tables (findings, critical path, gaps, …) over their spans and below the ruler, to step through.
import { LABELS, RULER, topsOf } from "./draw.js";
import { LANE } from "./layout.js";

// The marks of all traces in order of time. Those with facts are the longest of their trace: one steps through them.
export async function marksOf(traces, source, query) {
  const answers = await Promise.allSettled(traces.map((trace) => source.marks(trace.index, query, traces.map((one) => one.index))));
  const parts = answers.flatMap(({ value }, i) => (value ? [{ trace: traces[i], ...value }] : []));
  if (!parts.length) throw answers[0].reason;
  const marks = parts.flatMap(({ trace, names, marks: own, facts }) => own.map(([id, track, depth, start, length, name], at) => (
    { trace, id, track, depth, start, length, name: names[name], facts: facts[at] })));
  marks.sort((a, b) => a.start + a.trace.offset - b.start - b.trace.offset);
  // Findings that are about all of the recording have a table, and no place.
  const places = new Set(marks.map((one) => one.name));
  const elsewhere = Object.entries(parts[0].tables ?? {}).filter(([title]) => !places.has(title));
  return { elsewhere, marks, hits: marks.filter((one) => one.facts), count: parts.reduce((sum, one) => sum + one.count, 0), total: parts.map((one) => one.total).filter(Boolean).join(" + ") };
}

// What can be marked: label, and the question that the server answers. An address may bring another table.
export function markChoices(traces, step, own) {
  const some = traces[0].layout.steps.length;
  const path = `table=critical-path&o.by=piece${some ? (step ? `&o.step=${step}` : "") : "&o.within=recording"}`;
  const choices = [["no marks", ""], ["findings", "findings=1"], ["critical path", path], ["idle gaps", "table=idle&o.by=gap"],
    ...(traces.length > 1 ? [["collectives", "table=collectives&o.by=call"]] : [])];
  if (own && !choices.some(([, query]) => query === own)) choices.push([new URLSearchParams(own).get("table") ?? "marks", own]);
  return choices;
}

export function drawMarks(context, state, at) {
  const tops = topsOf(state), below = RULER + state.rows.pinned.total;
  context.fillStyle = context.strokeStyle = state.colours.match;
  context.lineWidth = 1;
  context.save();
  context.beginPath();
  context.rect(LABELS, RULER - 4, state.width - LABELS, state.height);
  context.clip();
  let before = null, strip = -1, chained = -9;
  for (const mark of state.marks) {
    const left = at(mark.start + mark.trace.offset), right = at(mark.start + mark.length + mark.trace.offset);
    const row = mark.track === null ? undefined : tops.get(`${mark.trace.index}.${mark.track}`);
    const low = row ? row.top + (row.folded ? 0 : mark.depth) * LANE + LANE - 2 : 0;
    const y = low > (row?.pinned ? RULER : below) ? low : 0;
    if (right > LABELS && left < state.width) {
      if (right > strip + 0.5) {
        context.fillRect(left, RULER - 4, Math.max(right - left - 1, 1.5), 3);
        strip = Math.max(right, left + 1.5);
      }
      if (y) context.fillRect(left, y, Math.max(right - left, 1.5), 3);
      // A chain: what began when the mark before it ended.
      if (y && before?.y && before.y !== y && before.end === mark.start && before.trace === mark.trace && left > chained + 4) {
        chained = left;
        context.beginPath();
        context.moveTo(left, before.y);
        context.lineTo(left, y + 3);
        context.stroke();
      }
    }
    before = { y, end: mark.start + mark.length, trace: mark.trace };
  }
  context.restore();
  if (!state.mark) return;
  const left = at(state.mark.start + state.mark.trace.offset), wide = at(state.mark.start + state.mark.length + state.mark.trace.offset) - left;
  context.globalAlpha = 0.16;
  context.fillRect(left, RULER, Math.max(wide, 2), state.height);
  context.globalAlpha = 1;
}

export function drawFlags(context, state, at) {
  context.fillStyle = context.strokeStyle = state.colours.accent;
  context.setLineDash([4, 3]);
  state.flags.forEach((flag, i) => {
    const x = Math.round(at(flag.start)) + 0.5;
    if (x < LABELS || x > state.width) return;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, state.height);
    context.stroke();
    context.fillRect(x, RULER - 15, 13, 14);
    context.fillStyle = state.colours.panel;
    context.fillText("AB"[i], x + 3, RULER - 8);
    context.fillStyle = state.colours.accent;
  });
  context.setLineDash([]);
}
