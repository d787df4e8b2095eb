// Runs before the page is drawn, so that a chosen theme does not flash: hence no module.
(() => {
  "use strict";
  let stored = null;
  try { stored = localStorage.getItem("stepscope-theme"); } catch { /* storage may be off: the system's theme it is */ }
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
})();
