// Tables: sorted, filtered and in pages.

/** The number that a cell shows; NaN is above infinity, and what is no number below all. */
function number(text) {
  if (text === "NaN") return Infinity;
  if (text === "∞") return Number.MAX_VALUE;
  const value = parseFloat(text);
  return Number.isNaN(value) ? -Infinity : value;
}

class Table {
  constructor(box) {
    const data = read(box);
    this.box = box;
    this.columns = data.columns;
    this.page = data.page;
    this.cells = data.cells.map((cells, c) => {
      const values = data.columns[c].values;
      return values ? cells.map((index) => values[index]) : cells;
    });
    this.count = this.cells[0].length;
    this.texts = null; // what the filter searches, made on first use
    this.rows = Array.from({ length: this.count }, (_, row) => row);
    this.order = this.rows;
    this.first = 0;
    this.result = this.columns.findIndex((column) => column.kind === "result");
    this.body = box.querySelector("tbody");
    box.querySelector("caption .part")?.remove();
    this.addSorting();
    this.addControls();
    this.addPager();
    this.show();
  }
  isFailed(row) { return this.result >= 0 && this.cells[this.result][row] === "failed"; }
  column(label) { return this.cells[this.columns.findIndex((column) => column.label === label)]; }

  addSorting() {
    this.heads = [...this.box.querySelectorAll("thead th")];
    this.heads.forEach((head, c) => {
      const button = make("button", { type: "button", onclick: () => this.sort(c) }, head.textContent);
      head.replaceChildren(button);
    });
  }
  sort(c) {
    const head = this.heads[c];
    const isNumber = this.columns[c].kind === "number";
    const before = head.getAttribute("aria-sort");
    // Numbers: largest first; a third click restores the first order.
    const turns = isNumber ? ["descending", "ascending", null] : ["ascending", "descending", null];
    const direction = turns[before ? turns.indexOf(before) + 1 : 0];
    for (const other of this.heads) other.removeAttribute("aria-sort");
    this.order = this.rows;
    if (direction) {
      head.setAttribute("aria-sort", direction);
      const keys = isNumber ? this.cells[c].map(number) : this.cells[c];
      const sign = direction === "ascending" ? 1 : -1;
      const compare = isNumber
        ? (a, b) => (keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : 0)
        : (a, b) => sign * collator.compare(keys[a], keys[b]);
      this.order = [...this.rows].sort(compare);
    }
    this.first = 0;
    this.show();
  }

  addControls() {
    const controls = this.box.querySelector(".controls");
    const changed = () => { this.first = 0; this.show(); };
    this.text = make("input", { type: "search", placeholder: "part of a name", autocomplete: "off", spellcheck: "false", oninput: changed });
    controls.append(make("label", { class: "grow" }, "Filter", this.text));
    this.selects = [];
    this.columns.forEach((column, c) => {
      if (column.kind !== "choice" || column.values.length < 2) return;
      const select = make("select", { onchange: changed }, make("option", { value: "" }, "all"), ...column.values.map(option));
      controls.append(make("label", {}, column.label, select));
      this.selects.push([c, select]);
    });
    if (this.result >= 0) {
      this.failedOnly = make("input", { type: "checkbox", onchange: changed });
      controls.append(make("label", {}, this.failedOnly, "failed only"));
    }
    controls.hidden = this.count < 2;
  }
  filtered() {
    const wanted = this.text.value.trim().toLowerCase();
    if (wanted && !this.texts) {
      this.texts = this.rows.map((row) => this.cells.map((cells) => cells[row]).join("\n").toLowerCase());
    }
    const selects = this.selects.filter(([, select]) => select.value);
    return this.order.filter((row) =>
      (!wanted || this.texts[row].includes(wanted)) &&
      selects.every(([c, select]) => this.cells[c][row] === select.value) &&
      (!this.failedOnly?.checked || this.isFailed(row)));
  }

  addPager() {
    const step = (pages) => () => { this.first += pages * this.page; this.show(); };
    this.back = make("button", { type: "button", onclick: step(-1) }, "Previous");
    this.next = make("button", { type: "button", onclick: step(1) }, "Next");
    this.status = make("output", { "aria-live": "polite" });
    const pager = this.box.querySelector(".pager");
    pager.append(this.status, this.back, this.next);
    pager.hidden = false;
  }
  show() {
    const rows = this.filtered();
    this.first = Math.max(0, Math.min(this.first, rows.length - 1));
    const end = Math.min(this.first + this.page, rows.length);
    this.body.replaceChildren(...rows.slice(this.first, end).map((row) => this.element(row)));
    const of = rows.length < this.count ? `${grouped(rows.length)} of ${grouped(this.count)} rows match` : this.count === 1 ? "1 row" : `${grouped(this.count)} rows`;
    this.status.textContent = rows.length ? `${grouped(this.first + 1)} to ${grouped(end)}; ${of}` : `No row of ${grouped(this.count)} matches.`;
    this.back.disabled = this.first === 0;
    this.next.disabled = end >= rows.length;
    this.back.hidden = this.next.hidden = rows.length <= this.page;
  }
  element(row) {
    return make("tr", { id: `${this.box.id}-${row}`, class: row === this.marked && "marked", tabindex: row === this.marked && "-1" }, ...this.columns.map((column, c) => {
      const text = this.cells[c][row];
      if (column.kind === "result") return make("td", {}, make("span", { class: `badge ${text}` }, text));
      if (column.kind === "number") return make("td", { class: "number" }, text);
      if (column.kind === "choice") return make("td", { class: "short" }, text);
      return make("td", { class: "long" }, column.kind === "name" ? name(text) : make("bdi", {}, text));
    }));
  }
  showAll() {
    this.text.value = "";
    for (const [, select] of this.selects) select.value = "";
    if (this.failedOnly) this.failedOnly.checked = false;
  }
  unmark() {
    this.marked = null;
    this.body.querySelector(".marked")?.classList.remove("marked");
  }
  /** Shows a row, and marks it. */
  reveal(row) {
    if (!(row < this.count)) return;
    this.showAll();
    this.marked = row;
    this.first = Math.floor(this.order.indexOf(row) / this.page) * this.page;
    this.show();
    const element = this.body.querySelector(".marked");
    element.scrollIntoView({ block: "center" });
    element.focus({ preventScroll: true });
  }
  /** Shows the rows with a text. */
  find(text) {
    this.showAll();
    this.text.value = text;
    this.first = 0;
    this.show();
    this.box.scrollIntoView({ block: "start" });
    this.text.focus({ preventScroll: true });
  }
}
const collator = new Intl.Collator("en", { numeric: true });
