// Plotly charts from the figures in the page. Colours come from the style sheet, so that both themes fit.
import { inflated } from "./source.js";

let loading = null;

function library(root) {
  if (globalThis.Plotly) return Promise.resolve(globalThis.Plotly);
  const packed = document.getElementById("plotly");
  loading ??= packed ? unpacked(packed) : new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = root + "/static/plotly.min.js";
    script.onload = () => resolve(globalThis.Plotly);
    // A page that is being left loads nothing more, which is no error: by then it is gone.
    script.onerror = () => setTimeout(() => reject(new Error("Plotly's script could not be loaded")), 1000);
    document.head.append(script);
  });
  return loading;
}

// The script that the page carries runs only if it is the one whose hash the page's policy names.
async function unpacked(element) {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await inflated(element.textContent.trim()));
  document.head.append(script);
  return globalThis.Plotly;
}

function themed(figure) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line") };
  const layout = {
    ...figure.layout,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") } },
  };
  for (const name of ["xaxis", "yaxis"]) layout[name] = { ...axis, ...figure.layout[name] };
  return layout;
}

export function drawCharts(root) {
  const figures = [...document.querySelectorAll("figure.chart[data-figure]")];
  if (!figures.length) return;
  const draw = async (element) => {
    const Plotly = await library(root);
    const figure = JSON.parse(element.dataset.figure);
    await Plotly.react(element, figure.data, themed(figure), { displaylogo: false, responsive: true, displayModeBar: false });
    if (element.dataset.drawn) return;
    element.dataset.drawn = "1";
    element.on("plotly_click", (event) => {
      const target = event.points[0]?.customdata;
      // Only addresses that the server made: never what a trace may hold.
      if (typeof target === "string" && target.startsWith(root + "/timeline?")) location.href = target;
    });
  };
  // Far down the page they wait until they are visible: drawing takes time.
  const visible = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { visible.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "300px" });
  figures.forEach((element) => visible.observe(element));
  const redraw = () => figures.filter((element) => element.dataset.drawn).forEach(draw);
  document.addEventListener("themechange", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
