// Where the timeline gets its data: a server, or what a page in one file carries in itself.

const TYPES = { Uint8Array, Uint16Array, Uint32Array, Int32Array, Float32Array, Float64Array };

// The layout is described where it is written: length of the header, header, arrays.
export function arraysOf(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const one of header.arrays) arrays[one.name] = new TYPES[one.type](buffer, 4 + length + one.offset, one.length);
  return { ...header, ...arrays };
}

// A window of the timeline, with the rows of each lane.
export function unpack(buffer) {
  const made = arraysOf(buffer);
  return { ...made, spans: rangesOf(made.lane, made.lanes.length), bars: rangesOf(made.bar_lane, made.lanes.length) };
}

// First and last row of each lane: rows come lane by lane.
function rangesOf(lanes, count) {
  const first = new Uint32Array(count + 1);
  for (let i = 0; i < lanes.length; i++) first[lanes[i] + 1] = i + 1;
  for (let k = 1; k <= count; k++) if (first[k] < first[k - 1]) first[k] = first[k - 1];
  return first;
}

// `hidden` is the set of kinds that are left out; what is left moves up, so that depths change with it.
export function serverSource(root, hidden) {
  const call = async (index, path, parameters = {}, signal = undefined) => {
    const query = new URLSearchParams(hidden.size ? { ...parameters, hide: [...hidden].join(",") } : parameters).toString();
    for (let attempt = 0; ; attempt++) {
      const answer = await fetch(`${root}/api/trace/${index}/${path}${query ? "?" + query : ""}`, { signal });
      if (answer.ok) return answer;
      const body = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
      if (!body.waiting || attempt > 20) throw new Error(body.hint ? `${body.error}. ${body.hint}` : body.error);
    }
  };
  return {
    layout: async (index) => (await call(index, "layout")).json(),
    span: async (index, id) => (await call(index, `span/${id}`)).json(),
    search: async (index, q, exact) => (await call(index, "search", exact ? { q, exact: 1 } : { q })).json(),
    marks: async (index, query, traces) => (await call(index, "marks", { ...Object.fromEntries(new URLSearchParams(query)), t: traces.join(",") })).json(),
    statistics: async (index, low, high) => (await call(index, "statistics", { from: low, to: high })).json(),
    window: async (index, low, high, px, tracks, flat, signal) =>
      unpack(await (await call(index, "window", { from: low, to: high, px, tracks: tracks.join(","), flat: flat.join(",") }, signal)).arrayBuffer()),
  };
}

// What a page in one file carries packed: base64 of zlib's format.
export async function inflated(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Everything is on the page: a window is all there is, and sums are made here.
export async function embeddedSource(element) {
  const layouts = JSON.parse(element.dataset.layouts);
  const parts = await Promise.all(element.textContent.trim().split("\n").map(async (text) => unpack(await inflated(text.trim()))));
  const row = (part, i) => ({
    id: part.id[i], name: part.names[part.name[i]], track: part.lanes[part.lane[i]][0], depth: part.lanes[part.lane[i]][1],
    ts_ns: part.low + part.start[i], dur_ns: part.dur[i], duration: duration(part.dur[i]), category: layouts[0].categories[part.category[i]],
  });
  const indexOf = parts.map((part) => new Map(Array.from(part.id, (id, i) => [id, i])));
  return {
    layout: async (index) => layouts[index],
    window: async (index) => parts[index],
    span: async (index, id) => {
      const part = parts[index], i = indexOf[index].get(id);
      if (i === undefined) throw new Error("This span is outside the part of the timeline that the report holds.");
      const own = row(part, i), links = [];
      const launch = indexOf[index].get(part.launch[i]);
      if (launch !== undefined) links.push({ how: "launched by", ...row(part, launch) });
      for (let k = 0; k < part.launch.length && links.length < 40; k++) if (part.launch[k] === id) links.push({ how: "launches", ...row(part, k) });
      return { ...own, start: duration(own.ts_ns), facts: [["category", own.category]], stack: [], links };
    },
    search: async (index, q, exact) => {
      const part = parts[index], sought = q.toLowerCase();
      const wanted = part.names.map((name) => (exact ? name === q : name.toLowerCase().includes(sought)));
      const hits = [];
      let sum = 0;
      for (let i = 0; i < part.id.length; i++) {
        if (!wanted[part.name[i]]) continue;
        const one = row(part, i);
        hits.push([one.id, one.track, one.ts_ns, one.dur_ns]);
        sum += one.dur_ns;
      }
      hits.sort((a, b) => a[2] - b[2]);
      const longest = hits.reduce((best, hit, i) => (hit[3] > (hits[best]?.[3] ?? -1) ? i : best), 0);
      return { count: hits.length, n_names: wanted.filter(Boolean).length, total: duration(sum), longest, hits };
    },
    statistics: async (index, low, high) => {
      const part = parts[index], sums = new Map(), kinds = new Map(), open = new Map();
      let n = 0;
      for (let i = 0; i < part.id.length; i++) {
        const from = Math.max(part.low + part.start[i], low), to = Math.min(part.low + part.start[i] + part.dur[i], high);
        if (to <= from) continue;
        n++;
        const category = layouts[index].categories[part.category[i]];
        for (const [map, key] of [[sums, part.names[part.name[i]] + "\0" + category], [kinds, category]]) {
          const sum = map.get(key) ?? { name: key.split("\0")[0], category, count: 0, ns: 0 };
          sum.count++;
          sum.ns += to - from;
          map.set(key, sum);
        }
        const place = part.lanes[part.lane[i]][0] + "\0" + category;
        if (!open.has(place)) open.set(place, []);
        open.get(place).push([from, to]);
      }
      // Time of a category is that in which one of its spans is open, track by track: nested spans count once.
      for (const kind of kinds.values()) kind.ns = 0;
      for (const [place, spans] of open) kinds.get(place.split("\0")[1]).ns += covered(spans);
      const listed = (map) => [...map.values()].sort((a, b) => b.ns - a.ns).map((s) => ({ ...s, total: duration(s.ns), mean: duration(s.ns / s.count) }));
      const names = listed(sums);
      return { length: duration(high - low), n_spans: n, device_busy: null, categories: listed(kinds), names: names.slice(0, 50), names_left_out: Math.max(names.length - 50, 0) };
    },
  };
}

function covered(spans) {
  let sum = 0, end = -Infinity;
  for (const [from, to] of spans.sort((a, b) => a[0] - b[0])) {
    sum += Math.max(to - Math.max(from, end), 0);
    end = Math.max(end, to);
  }
  return sum;
}

// A length in ns with three digits.
export function duration(ns) {
  const sign = ns < 0 ? "-" : "", size = Math.abs(ns);
  for (const [unit, factor] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= factor * 0.9995) return sign + Number((size / factor).toPrecision(3)) + " " + unit;
  }
  return sign + Math.round(size) + " ns";
}
