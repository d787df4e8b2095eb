// Tables that are wholly on the page are sorted in place: numbers by their raw values, unknown ones last.
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
