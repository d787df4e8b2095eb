// The editor of the page SQL: run by keyboard, names put in by a click, a message where the address would be too long.
const form = document.getElementById("ask");
const editor = document.getElementById("query");
const trouble = document.getElementById("too-long");
// The server takes addresses of 8,192 letters; some of them are not the query's.
const LONGEST_ADDRESS = 7_900;

editor.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    form.requestSubmit();
  }
});

// Before the form is sent off by what every page does.
form.addEventListener("submit", (event) => {
  const length = form.action.length + new URLSearchParams(new FormData(form)).toString().length;
  trouble.hidden = length <= LONGEST_ADDRESS;
  if (trouble.hidden) return;
  trouble.textContent = "The query is too long for an address. On the command line there is no limit: stepscope sql PATH -";
  event.preventDefault();
  event.stopImmediatePropagation();
}, { capture: true });

document.querySelector(".asking").addEventListener("click", (event) => {
  const name = event.target.closest("[data-insert]")?.dataset.insert;
  if (name === undefined) return;
  editor.focus();
  editor.setRangeText(name, editor.selectionStart, editor.selectionEnd, "end");
});
