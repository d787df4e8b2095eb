// The page "What if": its sliders are asked about together, and both steps are drawn part by part.
const page = document.getElementById("what-if");
const form = document.getElementById("controls");
const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let running;

function inputs() {
  return [...form.querySelectorAll("input")];
}

function stopOf(input) {
  const stops = input.dataset.stops.split(",");
  return input.type === "checkbox" ? stops[input.checked ? 1 : 0] : stops[input.value];
}

function changes() {
  return inputs().filter((input) => !["", "1x"].includes(stopOf(input))).map((input) => `${input.dataset.subject}: ${stopOf(input)}`);
}

// The address holds the changes, so that it can be shared; addresses of findings come with some.
function takeFromAddress() {
  for (const text of new URLSearchParams(location.search).getAll("if")) {
    for (const input of inputs()) {
      const stop = input.dataset.stops.split(",").findIndex((one) => one && text === `${input.dataset.subject}: ${one}`);
      if (stop < 0) continue;
      if (input.type === "checkbox") input.checked = true;
      else input.value = stop;
    }
  }
}

function quoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}

function drawBar(answer, key, whole) {
  let x = 0;
  const rects = answer.parts.map((part) => {
    const rect = document.createElementNS(SVG, "rect");
    const width = part[key + "_ns"] / whole * 1000;
    for (const [name, value] of Object.entries({ x, y: 0, width, height: 22, fill: part.colour })) rect.setAttribute(name, value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${key}: ${part.name} ${part[key]}`;
    rect.append(title);
    x += width;
    return rect;
  });
  at(key).replaceChildren(...rects);
}

function cell(text, kind) {
  const made = document.createElement("td");
  made.className = kind;
  made.textContent = text;
  return made;
}

function row(part) {
  const made = document.createElement("tr");
  const swatch = document.createElementNS(SVG, "svg");
  swatch.setAttribute("viewBox", "0 0 10 10");
  swatch.setAttribute("aria-hidden", "true");
  const square = document.createElementNS(SVG, "rect");
  for (const [name, value] of Object.entries({ width: 10, height: 10, fill: part.colour })) square.setAttribute(name, value);
  swatch.append(square);
  const name = cell("", "text");
  name.append(swatch, part.name);
  made.append(name, cell(part.recorded, "number"), cell(part.predicted, "number"));
  return made;
}

function draw(answer, asked) {
  const whole = Math.max(answer.step_ns, answer.predicted_ns, 1);
  at("said").textContent = asked.length ? `${answer.step} → ${answer.predicted}` : `${answer.step} a step, as recorded`;
  at("change").textContent = answer.change;
  const limits = answer.between && `Between ${answer.between[0]} and ${answer.between[1]}. `;
  const next = `Most of the critical path: ${answer.binds_next}.`;
  at("reason").textContent = (answer.reason ? `At best: ${answer.reason}. ` : "") + (limits ?? "") + next;
  for (const key of ["recorded", "predicted"]) drawBar(answer, key, whole);
  at("parts").replaceChildren(...answer.parts.map(row));
}

async function ask() {
  for (const input of inputs()) if (input.type === "range") input.nextElementSibling.textContent = stopOf(input);
  const asked = changes();
  const query = new URLSearchParams(asked.map((text) => ["if", text]));
  const here = new URLSearchParams(location.search);
  here.delete("if");
  asked.forEach((text) => here.append("if", text));
  history.replaceState(null, "", location.pathname + (here.size ? "?" + here : ""));
  at("command").textContent = ["stepscope predict TRACE", ...asked.map((text) => "--if " + quoted(text))].join(" ");
  running?.abort();
  running = new AbortController();
  const mine = running;
  try {
    const answer = await fetch(`${page.dataset.address}?${query}`, { signal: mine.signal });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error);
    draw(body, asked);
    page.dataset.ready = asked.join(" + ");
  } catch (error) {
    if (mine.signal.aborted) return;
    at("said").textContent = String(error.message);
    at("change").textContent = "";
  }
}

let soon;
form.addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(ask, 60); });
form.addEventListener("reset", () => setTimeout(ask));
takeFromAddress();
ask();
