// Brings the page to life.

// On a telephone, the picture comes before the versions.
if (matchMedia("(max-width: 560px)").matches) for (const box of document.querySelectorAll(".facts-box")) box.open = false;
setUpTheme(document.querySelector(".theme"));
const tables = new Map([...document.querySelectorAll("[data-table]")].map((box) => [box.id, new Table(box)]));
for (const figure of document.querySelectorAll("[data-scatter]")) new Scatter(figure, tables.get(figure.dataset.scatter));
/** Shows the row that the address names, such as #nodes-12. */
function followAddress() {
  const [, id, row] = /^#([a-z-]+)-(\d+)$/.exec(location.hash) ?? [];
  if (!tables.has(id)) return;
  for (const table of tables.values()) table.unmark();
  tables.get(id).reveal(Number(row));
}
addEventListener("hashchange", followAddress);
followAddress();
// A link to the row of the address changes nothing, and still goes there.
document.addEventListener("click", (event) => { if (event.target.closest?.("a")?.getAttribute("href") === location.hash) followAddress(); });
for (const node of document.querySelectorAll(".graph .centre")) {
  const region = node.closest(".graph"), box = node.getBBox();
  region.scrollTo(box.x + (box.width - region.clientWidth) / 2, box.y + (box.height - region.clientHeight) / 2);
}
for (const button of document.querySelectorAll(".copy")) setUpCopy(button);
