// The panel next to the timeline. Everything is put in as text: names come from traces and are never markup.
import { duration } from "./source.js";

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function showDetails(panel, details, open, more) {
  const links = details.links.map((link) =>
    element("li", {}, element("button", { type: "button", onclick: () => open(link) }, `${link.how}: ${link.name} (${link.duration})`)));
  panel.replaceChildren(
    element("h2", {}, details.name || "(no name)"),
    element("p", {}, element("button", { type: "button", onclick: more.zoom }, "Zoom to it"), " ", element("button", { type: "button", onclick: more.alike }, "All of this name"), " ",
      element("button", { type: "button", onclick: more.measure, title: "Key M" }, "Measure")),
    element("dl", {}, ...pairs([["start", details.start], ["duration", details.duration], ...details.facts])),
    ...(links.length ? [element("h3", {}, "Tied to"), element("ul", {}, ...links)] : []),
    ...(details.stack.length ? [element("h3", {}, "Call stack, outermost first"), element("ol", {}, ...details.stack.map((frame) => element("li", {}, frame)))] : []),
  );
}

function pairs(facts) {
  return facts.flatMap(([name, value]) => [element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, value)]);
}

// A mark: its row of the table, put before what the panel says of its span.
export function showMark(panel, mark, list) {
  panel.prepend(element("section", { class: "mark" }, element("p", {}, element("button", { type: "button", onclick: list }, "All marks")),
    element("h2", {}, mark.name || "mark"), element("dl", {}, ...pairs(mark.facts))));
  panel.scrollTop = 0;
}

export function showMarks(panel, title, marks, elsewhere, open) {
  const ordered = [...marks].sort((a, b) => b.length - a.length), several = new Set(marks.map((one) => one.trace)).size > 1;
  panel.replaceChildren(element("h2", {}, title), element("p", { class: "quiet" }, "Longest first. N and P step through them in order of time."),
    element("table", {}, element("thead", {}, element("tr", {}, ...[...(several ? ["rank"] : []), "mark", "time"].map((head) => element("th", { scope: "col", class: head === "mark" ? "text" : "number" }, head)))),
      element("tbody", {}, ...ordered.map((one) => element("tr", {},
      ...(several ? [element("td", { class: "number" }, one.trace.layout.rank ?? one.trace.index)] : []),
      element("td", { class: "text", title: one.name }, element("button", { type: "button", onclick: () => open(one) }, one.name || "mark")),
      element("td", { class: "number" }, duration(one.length)))))),
    ...(elsewhere.length ? [element("h3", {}, "Not at one place"), element("ul", {}, ...elsewhere.map(([name, href]) => element("li", {}, href ? element("a", { href }, name) : name)))] : []));
}

// `measure` are lengths between two marks. `flames` are the addresses of flame graphs of a part's range, by what they are of.
export function showStatistics(panel, parts, alike, measure) {
  panel.replaceChildren(element("h2", {}, `Range of ${parts[0]?.sums.length ?? ""}`), ...(measure.length ? [element("dl", {}, ...pairs(measure))] : []));
  for (const { title, sums, flames } of parts) {
    if (parts.length > 1) panel.append(element("h3", {}, title));
    const facts = [["spans", sums.n_spans.toLocaleString("en")]];
    if (sums.device_busy) facts.push(["device busy", sums.device_busy]);
    // What a server adds up has each name's own time too; a report in one file has the whole.
    const own = sums.names[0]?.own !== undefined;
    const links = Object.entries(flames).map(([name, href]) => element("a", { href }, name));
    panel.append(element("dl", {}, ...pairs(facts)), ...(links.length ? [element("p", { class: "more" }, "Flame graph: ", ...links)] : []), table(["category", "calls", "time"], sums.categories, null), element("h3", {}, own ? "Names with most time of their own" : "Names with most time"),
      table(["name", "calls", own ? "own time" : "time"], sums.names, alike));
    if (sums.names_left_out) panel.append(element("p", { class: "quiet" }, `${sums.names_left_out} more names`));
  }
}

function table(heads, rows, open) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((head, i) => element("th", { scope: "col", class: i ? "number" : "text" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {},
      element("td", { class: "text", title: row.name }, open ? element("button", { type: "button", onclick: () => open(row.name) }, row.label ?? row.name) : row.name),
      element("td", { class: "number" }, row.count.toLocaleString("en")), element("td", { class: "number", title: row.own === undefined ? null : `${row.total} with what is inside` }, row.own ?? row.total)))));
}
