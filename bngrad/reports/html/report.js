"use strict";
(() => {
  const ROOT = document.documentElement;

  /** Makes an element with attributes, properties in `on` as listeners, and children. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }
  function makeSvg(tag, attributes) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }
  /** A name, which may be broken into lines behind its separators. */
  const name = (text) => make("bdi", { class: "name" }, ...text.split(/(?<=[./_:])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])));
  const read = (element) => JSON.parse(element.querySelector(":scope > script[type='application/json']").textContent);
  const grouped = (count) => count.toLocaleString("en-US");
  const option = (text) => make("option", { value: text }, text);

  // -- light and dark

  function setUpTheme(button) {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    let chosen = null;
    try { chosen = localStorage.getItem("bngrad-theme"); } catch { /* storage is off for this file */ }
    const current = () => chosen ?? (dark.matches ? "dark" : "light");
    function apply() {
      if (chosen) ROOT.dataset.theme = chosen;
      button.querySelector("span").textContent = current() === "dark" ? "Light" : "Dark";
      button.setAttribute("aria-label", `Use ${current() === "dark" ? "light" : "dark"} colors`);
    }
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = current() === "dark" ? "light" : "dark";
      try { localStorage.setItem("bngrad-theme", chosen); } catch { /* as above */ }
      apply();
    });
    dark.addEventListener("change", apply);
    apply();
  }

  // -- tables

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
      const of = rows.length < this.count ? `${grouped(rows.length)} of ${grouped(this.count)} rows match` : `${grouped(this.count)} rows`;
      this.status.textContent = rows.length ? `${grouped(this.first + 1)} to ${grouped(end)}; ${of}` : `No row of ${grouped(this.count)} matches.`;
      this.back.disabled = this.first === 0;
      this.next.disabled = end >= rows.length;
      this.back.hidden = this.next.hidden = rows.length <= this.page;
    }
    element(row) {
      return make("tr", {}, ...this.columns.map((column, c) => {
        const text = this.cells[c][row];
        if (column.kind === "result") return make("td", {}, make("span", { class: `badge ${text}` }, text));
        if (column.kind === "number") return make("td", { class: "number" }, text);
        if (column.kind === "choice") return make("td", { class: "short" }, text);
        return make("td", { class: "long" }, column.kind === "name" ? name(text) : make("bdi", {}, text));
      }));
    }
    /** Shows the rows with a text. */
    find(text) {
      this.text.value = text;
      for (const [, select] of this.selects) select.value = "";
      if (this.failedOnly) this.failedOnly.checked = false;
      this.first = 0;
      this.show();
      this.box.scrollIntoView({ block: "start" });
      this.text.focus({ preventScroll: true });
    }
  }
  const collator = new Intl.Collator("en", { numeric: true });

  // -- the picture of error over limit

  const MOST_MARKS = 4000;

  class Scatter {
    constructor(figure, table) {
      const data = read(figure);
      Object.assign(this, { figure, table, ranks: data.ranks, y: data.y, count: data.count, boundary: data.boundary });
      this.svg = figure.querySelector(".area");
      this.marks = figure.querySelector(".marks");
      this.dividers = [...figure.querySelectorAll(".boundary, .side")];
      const series = new Map([...new Set(table.column("check"))].map((name) => [name, null]));
      for (const item of figure.querySelectorAll(".legend li")) {
        const dot = item.querySelector(".dot");
        if (dot) series.set(item.textContent.trim(), dot.classList[1]);
      }
      this.classes = table.column("check").map((name) => series.get(name) ?? "s4");
      this.ring = makeSvg("circle", { class: "ring", r: 7, visibility: "hidden" });
      this.selection = makeSvg("rect", { class: "selection", y: 0, height: this.svg.getAttribute("height"), visibility: "hidden" });
      this.svg.append(this.selection, this.ring);
      this.tip = make("div", { class: "tip", role: "status", hidden: true });
      figure.querySelector(".field").append(this.tip);
      this.svg.setAttribute("tabindex", "0");
      figure.querySelector(".hint").hidden = false;
      this.addControls();
      this.addPointer();
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("blur", () => this.point(null));
      this.zoom(0, this.count);
    }
    addControls() {
      const controls = this.figure.querySelector(".controls");
      const select = (label) => {
        const element = make("select", { onchange: () => this.draw() }, make("option", { value: "" }, "all"), ...new Set(this.table.column(label)));
        for (const [index, text] of [...element.childNodes].entries()) if (index) text.replaceWith(option(text.textContent));
        controls.append(make("label", {}, label, element));
        return element;
      };
      this.check = select("check");
      this.implementation = select("implementation");
      const button = (label, text, action) => controls.append(make("button", { type: "button", "aria-label": label, onclick: action }, text));
      button("Zoom in", "+", () => this.zoomBy(0.5));
      button("Zoom out", "−", () => this.zoomBy(2));
      button("Show all nodes", "All", () => this.zoom(0, this.count));
      controls.hidden = false;
    }
    percent(rank) { return (100 * (rank + 0.5 - this.start)) / (this.end - this.start); }

    zoom(start, end) {
      const width = Math.min(Math.max(end - start, Math.min(4, this.count)), this.count);
      this.start = Math.min(Math.max(start, 0), this.count - width);
      this.end = this.start + width;
      this.draw();
    }
    zoomBy(factor) {
      const middle = this.selected != null ? this.ranks[this.selected] + 0.5 : (this.start + this.end) / 2;
      const half = (factor * (this.end - this.start)) / 2;
      this.zoom(middle - half, middle + half);
    }
    draw() {
      const { check, implementation, table } = this;
      const checks = table.column("check"), implementations = table.column("implementation");
      this.visible = [];
      for (let row = 0; row < this.ranks.length; ++row) {
        if (this.ranks[row] < this.start - 0.5 || this.ranks[row] > this.end - 0.5) continue;
        if (check.value && checks[row] !== check.value) continue;
        if (implementation.value && implementations[row] !== implementation.value) continue;
        this.visible.push(row);
      }
      const drawn = this.visible.length > MOST_MARKS ? this.largest() : this.visible;
      const uses = drawn.map((row) => {
        const failed = table.isFailed(row);
        return makeSvg("use", {
          href: failed ? "#diamond" : "#dot",
          class: failed ? "failed" : this.classes[row],
          x: `${this.percent(this.ranks[row])}%`,
          y: this.y[row],
        });
      });
      this.marks.replaceChildren(...uses.reverse()); // the worst on top
      for (const element of this.dividers) {
        const x = `${this.percent(this.boundary - 0.5)}%`;
        for (const name of element.matches("line") ? ["x1", "x2"] : ["x"]) element.setAttribute(name, x);
        element.setAttribute("visibility", this.boundary > this.start && this.boundary < this.end ? "visible" : "hidden");
      }
      const [left, right] = this.figure.querySelectorAll(".x-axis span");
      const whole = this.start === 0 && this.end === this.count;
      left.textContent = whole ? "first node" : `node ${Math.ceil(this.start) + 1}`;
      right.textContent = whole ? "last node" : `node ${Math.floor(this.end)}`;
      this.point(this.visible.includes(this.selected) ? this.selected : null);
    }
    /** The failed rows, and the largest of each place and check: the rows of a check are in the order of their ratios. */
    largest() {
      const seen = new Set();
      const step = Math.max((this.end - this.start) / 600, 1);
      return this.visible.filter((row) => {
        const key = `${Math.floor(this.ranks[row] / step)} ${this.classes[row]}`;
        const keep = this.table.isFailed(row) || !seen.has(key);
        seen.add(key);
        return keep;
      });
    }

    addPointer() {
      let from = null;
      const at = (event) => {
        const box = this.svg.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top, box.width];
      };
      const rank = (x, width) => this.start + (x / width) * (this.end - this.start);
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.pointerType === "mouse" && event.button === 0) {
          from = at(event)[0];
          this.svg.setPointerCapture(event.pointerId);
        }
      });
      this.svg.addEventListener("pointermove", (event) => {
        const [x, y, width] = at(event);
        if (from !== null && Math.abs(x - from) > 4) {
          this.point(null);
          this.selection.setAttribute("x", Math.min(x, from));
          this.selection.setAttribute("width", Math.abs(x - from));
          this.selection.setAttribute("visibility", "visible");
          return;
        }
        this.point(this.nearest(x, y, width, event.pointerType === "mouse" ? 24 : 40));
      });
      this.svg.addEventListener("pointerup", (event) => {
        const [x, y, width] = at(event);
        this.selection.setAttribute("visibility", "hidden");
        if (from !== null && Math.abs(x - from) > 8) this.zoom(rank(Math.min(x, from), width), rank(Math.max(x, from), width));
        else this.point(this.nearest(x, y, width, 40));
        from = null;
      });
      this.svg.addEventListener("pointercancel", () => { from = null; this.selection.setAttribute("visibility", "hidden"); });
      this.svg.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && from === null) this.point(null); });
      this.svg.addEventListener("dblclick", () => this.zoom(0, this.count));
    }
    nearest(x, y, width, reach) {
      let best = null, least = reach * reach;
      for (const row of this.visible) {
        const dx = (this.percent(this.ranks[row]) / 100) * width - x, dy = this.y[row] - y;
        const distance = dx * dx + dy * dy;
        if (distance < least) [best, least] = [row, distance];
      }
      return best;
    }
    point(row) {
      this.selected = row;
      this.tip.hidden = row == null;
      this.ring.setAttribute("visibility", row == null ? "hidden" : "visible");
      if (row == null) return;
      const x = this.percent(this.ranks[row]), get = (label) => this.table.column(label)[row];
      this.ring.setAttribute("cx", `${x}%`);
      this.ring.setAttribute("cy", this.y[row]);
      const node = get("node or output"), tensor = get("tensor");
      const lines = [
        [make("b", {}, name(node))],
        ...(tensor ? [[name(tensor)]] : []),
        [`${get("error / limit")} × limit, ${get("result")}`],
        [`${get("check")}: ${get("implementation")} against ${get("against")}`],
        ...(get("note") ? [[make("bdi", {}, get("note"))]] : []),
      ];
      this.tip.replaceChildren(...lines.map((line) => make("div", {}, ...line)));
      const width = this.svg.getBoundingClientRect().width, left = (x / 100) * width;
      this.tip.style.left = `${Math.min(Math.max(left - this.tip.offsetWidth / 2, 0), Math.max(width - this.tip.offsetWidth, 0))}px`;
      const above = this.y[row] - this.tip.offsetHeight - 14;
      this.tip.style.top = `${above >= -4 ? above : this.y[row] + 14}px`;
    }
    key(event) {
      const actions = {
        ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1),
        ArrowUp: () => this.turn(-1), ArrowDown: () => this.turn(1),
        Home: () => this.move(-Infinity), End: () => this.move(Infinity),
        "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), "0": () => this.zoom(0, this.count),
        Escape: () => this.point(null),
        Enter: () => { if (this.selected != null) this.table.find(this.table.column("node or output")[this.selected]); },
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    }
    /** Goes to the worst comparison of another node. */
    move(by) {
      const ranks = [...new Set(this.visible.map((row) => this.ranks[row]))].sort((a, b) => a - b);
      if (!ranks.length) return;
      const here = this.selected == null ? (by > 0 ? -1 : ranks.length) : ranks.indexOf(this.ranks[this.selected]);
      const rank = ranks[Math.min(Math.max(here + by, 0), ranks.length - 1)];
      this.point(this.visible.find((row) => this.ranks[row] === rank));
    }
    /** Goes to another comparison of the same node. */
    turn(by) {
      if (this.selected == null) return this.move(1);
      const rows = this.visible.filter((row) => this.ranks[row] === this.ranks[this.selected]);
      this.point(rows[Math.min(Math.max(rows.indexOf(this.selected) + by, 0), rows.length - 1)]);
    }
  }

  // On a telephone, the picture comes before the versions.
  if (matchMedia("(max-width: 560px)").matches) document.querySelector(".facts-box").open = false;
  setUpTheme(document.querySelector(".theme"));
  const tables = new Map([...document.querySelectorAll("[data-table]")].map((box) => [box.id, new Table(box)]));
  for (const figure of document.querySelectorAll("[data-scatter]")) new Scatter(figure, tables.get(figure.dataset.scatter));
})();
