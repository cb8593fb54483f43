// Brings the page to life.

// On a telephone, the picture comes before the versions.
if (matchMedia("(max-width: 560px)").matches) document.querySelector(".facts-box").open = false;
setUpTheme(document.querySelector(".theme"));
const tables = new Map([...document.querySelectorAll("[data-table]")].map((box) => [box.id, new Table(box)]));
for (const figure of document.querySelectorAll("[data-scatter]")) new Scatter(figure, tables.get(figure.dataset.scatter));
for (const button of document.querySelectorAll(".copy")) setUpCopy(button);
