// Tables that are wholly on the page: sorted in place, numbers by their raw values, unknown ones last; trees open and close.
export function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const number = head.classList.contains("number");
      const descending = head.ariaSort ? head.ariaSort === "ascending" : number;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const sign = descending ? -1 : 1;
      const body = table.tBodies[0];
      const keyed = [...body.rows].map((row) => [keyOf(row.cells[column], number), row]);
      keyed.sort(([a], [b]) => (a === null ? (b === null ? 0 : 1) : b === null ? -1 : number ? sign * (a - b) : sign * a.localeCompare(b)));
      body.append(...keyed.map(([, row]) => row));
    });
  });
}

function keyOf(cell, number) {
  if (!number) return cell.textContent.trim();
  return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
}

// Rows of a tree: a name alone in place of its path, and a button where others are inside. At first two levels are open.
export function makeTree(table) {
  const heads = [...table.tHead.rows[0].cells], at = heads.findIndex((head) => head.textContent.trim() === "path");
  const rows = [...table.tBodies[0].rows], depths = rows.map((row) => Number(row.dataset.depth));
  if (at < 0) return;
  const closed = new Set();
  const show = () => {
    let below = Infinity;
    rows.forEach((row, i) => {
      if (depths[i] <= below) below = Infinity;
      row.hidden = depths[i] > below;
      if (closed.has(i)) below = Math.min(below, depths[i]);
    });
  };
  rows.forEach((row, i) => {
    const cell = row.cells[at], path = (cell.title || cell.textContent).trim(), inside = depths[i + 1] > depths[i];
    const name = path.split("/").at(-1);
    cell.replaceChildren(name);
    cell.style.paddingLeft = `${9 + depths[i] * 16 + (inside ? 0 : 18)}px`;
    if (!inside) return;
    const button = document.createElement("button");
    const turn = (open) => {
      if (open) closed.delete(i);
      else closed.add(i);
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "▾" : "▸";
    };
    button.type = "button";
    button.setAttribute("aria-label", `What is inside ${name}`);
    button.addEventListener("click", () => { turn(closed.has(i)); show(); });
    turn(depths[i] < 2);
    cell.prepend(button, " ");
  });
  show();
}
