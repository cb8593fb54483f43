// The picture of error over limit: zoomed, filtered, read by pointer and keyboard.

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
