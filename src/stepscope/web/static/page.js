// What every page does: theme, charts, tables sorted in place, forms with short addresses, waiting, new files.
import { drawCharts } from "./charts.js";
import { makeSortable, makeTree } from "./sorting.js";

const root = document.body.dataset.root || "";

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("stepscope-theme", document.documentElement.dataset.theme); } catch { /* not stored then */ }
  document.dispatchEvent(new CustomEvent("themechange"));
}

// Several checkboxes become one parameter, empty ones none: addresses stay short enough to share.
function shortenForms() {
  for (const form of document.querySelectorAll("form[data-join], form[data-drop-empty]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const pairs = new URLSearchParams();
      const joined = form.dataset.join;
      if (joined) {
        for (const [name, value] of new URLSearchParams(location.search)) if (name !== joined && name !== "page") pairs.append(name, value);
      }
      const boxes = joined ? [...form.querySelectorAll(`input[name="${joined}"]`)] : [];
      const checked = boxes.filter((box) => box.checked).map((box) => box.value);
      if (checked.length && checked.length < boxes.length) pairs.set(joined, checked.join(","));
      for (const [name, value] of new FormData(form)) if (name !== joined && value !== "") pairs.set(name, value);
      const query = pairs.toString();
      location.href = form.action.split("?")[0] + (query ? "?" + query : "");
    });
  }
}

async function wait() {
  const bar = document.getElementById("progress");
  const status = document.getElementById("working");
  const poll = setInterval(async () => {
    try {
      const state = await (await fetch(root + "/api/progress")).json();
      if (state.reading.length) {
        bar.value = state.reading.reduce((sum, one) => sum + one.ratio, 0) / state.reading.length;
        status.textContent = "Reading " + state.reading.map((one) => one.name).join(", ");
      } else {
        bar.removeAttribute("value");
        status.textContent = "Working out the answer";
      }
    } catch {
      status.textContent = "The server does not answer. Is stepscope still running?";
    }
  }, 300);
  for (;;) {
    try {
      const answer = await fetch(location.href, { headers: { "x-stepscope-wait": "1" } });
      if (answer.status !== 202) break;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
  clearInterval(poll);
  location.reload();
}

// Files that appear in a watched folder are offered, never put in while someone reads.
function watch() {
  const picker = document.getElementById("inputs");
  const news = document.getElementById("news");
  if (!news) return;
  const known = picker ? picker.querySelectorAll("input").length : 1;
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const state = await (await fetch(root + "/api/progress")).json();
      const more = state.inputs.length - known;
      if (more > 0 && news.hidden) {
        news.textContent = more === 1 ? `New trace: ${state.inputs.at(-1)}. ` : `${more} new traces. `;
        const link = document.createElement("a");
        link.href = location.href;
        link.textContent = "Reload";
        news.append(link);
        news.hidden = false;
      }
    } catch { /* the server has stopped: what is on the page stays readable */ }
  }, 5000);
}

// Drawn parts of a bar lead where their entries in the legend do. Only addresses that the server made.
document.addEventListener("click", (event) => {
  const target = event.target.closest?.("[data-events]")?.dataset.events;
  if (target?.startsWith(root + "/")) location.href = target;
});
document.getElementById("theme")?.addEventListener("click", toggleTheme);
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll("table.tree").forEach(makeTree);
shortenForms();
drawCharts(root);
if (document.querySelector("[data-waiting]")) wait();
else if (location.protocol.startsWith("http")) watch();
