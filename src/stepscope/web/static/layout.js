// Rows of the timeline: groups, tracks, sampled lines; which are folded, which are pinned; where each lies.

export const LANE = 16, HEAD = 22, LINE = 44, GAP = 4;

// All rows of all traces, top to bottom. A folded group shows its head alone, a folded track its outermost lane.
// Pinned tracks are in the order in which they were pinned.
export function rowsOf(traces, folded, pinned) {
  const rows = [], top = [];
  const several = traces.length > 1;
  for (const trace of traces) {
    const lead = several ? (trace.layout.rank === null ? trace.layout.label : `rank ${trace.layout.rank}`) + " · " : "";
    for (const group of trace.layout.groups) {
      const key = `${trace.index}.${group.label}`;
      const hidden = folded.has(key);
      // The steps of a further trace are drawn in its first head, from where the labels end.
      const withSteps = trace !== traces[0] && group === trace.layout.groups[0] && trace.layout.steps.length > 0;
      rows.push({ kind: "group", key, label: lead + group.label, trace, withSteps, folded: hidden, height: HEAD });
      for (const track of group.tracks) {
        const own = `${trace.index}.${track.id}`;
        const flat = folded.has(own);
        const row = { kind: "track", key: own, label: track.label, trace, track, folded: flat, height: (flat ? 1 : track.lanes) * LANE + GAP };
        if (pinned.has(own)) top.push({ ...row, label: lead + track.label, pinned: true });
        else if (!hidden) rows.push(row);
      }
    }
    if (trace.layout.lines.length) {
      const key = `${trace.index}.lines`;
      const hidden = folded.has(key);
      rows.push({ kind: "group", key, label: lead + "counters", trace, folded: hidden, height: HEAD });
      if (!hidden) trace.layout.lines.forEach((line, at) => rows.push({ kind: "line", key: `${key}.${at}`, label: line.label, trace, line, at, height: LINE }));
    }
  }
  const place = [...pinned];
  top.sort((a, b) => place.indexOf(a.key) - place.indexOf(b.key));
  return { pinned: stacked(top), rows: stacked(rows) };
}

function stacked(rows) {
  let y = 0;
  for (const row of rows) {
    row.y = y;
    y += row.height;
  }
  rows.total = y;
  return rows;
}

// What to add to a trace's times so that all lie on the axis of the first; by step: of the chosen one, else the first common.
export function offsetsOf(layouts, align, chosen) {
  const base = layouts[0];
  return layouts.map((layout) => {
    if (align === "step" && base.steps.length && layout.steps.length) {
      const has = (steps) => chosen && steps.find(([step]) => String(step) === chosen);
      if (has(base.steps) && has(layout.steps)) return has(base.steps)[1] - has(layout.steps)[1];
      const common = layout.steps.find(([step]) => base.steps.some(([other]) => other === step));
      const own = common ?? layout.steps[0];
      const other = common ? base.steps.find(([step]) => step === common[0]) : base.steps[0];
      return other[1] - own[1];
    }
    if (align === "clock" && base.origin_unix_ns !== null && layout.origin_unix_ns !== null) {
      return Number(BigInt(layout.origin_unix_ns) - BigInt(base.origin_unix_ns));
    }
    return base.first_ns - layout.first_ns;
  });
}

// By clock if the recordings overlap on it, else by their starts.
export function usualAlignment(layouts) {
  const offsets = offsetsOf(layouts, "clock");
  const low = Math.max(...layouts.map((one, i) => one.first_ns + offsets[i]));
  const high = Math.min(...layouts.map((one, i) => one.last_ns + offsets[i]));
  return low < high ? "clock" : "start";
}
