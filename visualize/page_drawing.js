// One drawing at a time: zoom, movement, and what a search has found in it.

const MOST = 4, LEAST = 0.02, READABLE = 0.8;

class Drawing {
  constructor(canvas, level, onChoose) {
    this.canvas = canvas;
    this.level = level;
    this.onChoose = onChoose;
    this.parsed = new Map();
    this.svg = null;
    this.view = { x: 0, y: 0, scale: 1 };
    this.listen();
    new ResizeObserver(() => this.resized()).observe(canvas);
  }

  /** Show a drawing by its number; `text` gives it the first time. */
  show(number, text) {
    if (this.number === number) return;
    this.number = number;
    if (!this.parsed.has(number)) {
      const found = new DOMParser().parseFromString(text(), "image/svg+xml").documentElement;
      const [, , width, height] = found.getAttribute("viewBox").split(/\s+/).map(Number);
      const svg = document.importNode(found, true);
      svg.removeAttribute("width");
      svg.removeAttribute("height");
      svg.setAttribute("aria-hidden", "true");
      for (const group of svg.querySelectorAll("g.node, g.cluster")) {
        const title = group.querySelector("title")?.textContent ?? "";
        const texts = [...group.querySelectorAll("text")].map((part) => part.textContent).join("\n");
        group.words = `${title}\n${texts}\n${group.dataset.also ?? ""}`.toLowerCase();
      }
      this.parsed.set(number, { svg, width, height });
    }
    const { svg, width, height } = this.parsed.get(number);
    this.svg = svg;
    this.size = { width, height };
    this.canvas.replaceChildren(svg);
    this.chosen = null;
    this.begin();
  }

  clear(message) {
    this.number = undefined;
    this.svg = null;
    this.canvas.replaceChildren(make("p", { class: "nothing" }, message));
    this.level.textContent = "";
  }

  /** All of a small drawing; the top of a large one, at a size that can be read. */
  begin() {
    if (!this.svg || !this.canvas.clientWidth) { this.waiting = true; return; }
    this.waiting = false;
    this.touched = false;
    const { width, height } = this.size, { clientWidth, clientHeight } = this.canvas;
    const all = Math.min(clientWidth / width, clientHeight / height, 1.25);
    const scale = all >= READABLE ? all : Math.max(Math.min(clientWidth / width, 1), READABLE);
    this.view = {
      scale,
      x: (width - clientWidth / scale) / 2,
      y: height * scale <= clientHeight ? (height - clientHeight / scale) / 2 : 0,
    };
    this.draw();
  }

  all() {
    if (!this.svg) return;
    const { width, height } = this.size, { clientWidth, clientHeight } = this.canvas;
    const scale = Math.min(clientWidth / width, clientHeight / height, MOST);
    this.view = { scale, x: (width - clientWidth / scale) / 2, y: (height - clientHeight / scale) / 2 };
    this.touched = true;
    this.draw();
  }

  resized() {
    if (this.waiting || !this.touched) this.begin();
    else this.draw();
  }

  draw() {
    if (!this.svg || !this.canvas.clientWidth) return;
    const { clientWidth, clientHeight } = this.canvas, { view, size } = this;
    const width = clientWidth / view.scale, height = clientHeight / view.scale;
    // Some of the drawing always stays in sight.
    view.x = Math.min(Math.max(view.x, -width * 0.8), size.width - width * 0.2);
    view.y = Math.min(Math.max(view.y, -height * 0.8), size.height - height * 0.2);
    this.svg.setAttribute("viewBox", `${view.x} ${view.y} ${width} ${height}`);
    this.level.textContent = `${Math.round(view.scale * 100)} %`;
  }

  /** Zoom so that the point under `x`, `y` (pixels of the canvas) stays where it is. */
  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const before = this.view.scale;
    const after = Math.min(Math.max(before * factor, LEAST), MOST);
    this.view.x += x / before - x / after;
    this.view.y += y / before - y / after;
    this.view.scale = after;
    this.touched = true;
    this.draw();
  }

  move(x, y) {
    this.view.x += x / this.view.scale;
    this.view.y += y / this.view.scale;
    this.touched = true;
    this.draw();
  }

  /** Mark what holds every word, and return it in the order of reading. */
  find(words) {
    if (!this.svg) return [];
    const parts = [...this.svg.querySelectorAll("g.node, g.cluster")];
    const found = words.length ? parts.filter((part) => words.every((word) => part.words.includes(word))) : [];
    this.svg.classList.toggle("searched", found.length > 0);
    parts.forEach((part) => part.classList.toggle("hit", found.includes(part)));
    const place = new Map(found.map((part) => [part, part.getBoundingClientRect()]));
    // A frame comes before what it holds.
    return found.sort((one, other) => place.get(one).top - place.get(other).top || place.get(one).left - place.get(other).left);
  }

  /** Choose a node or a piece, and bring it into sight. */
  choose(part, bring = true) {
    this.chosen?.classList.remove("chosen");
    this.chosen = part;
    part?.classList.add("chosen");
    if (part && bring) {
      if (this.view.scale < READABLE) this.view.scale = 0.9;
      this.draw();
      const outer = this.canvas.getBoundingClientRect(), inner = part.getBoundingClientRect();
      const high = inner.height > outer.height;
      this.move(
        inner.left + inner.width / 2 - outer.left - outer.width / 2,
        high ? inner.top - outer.top - 40 : inner.top + inner.height / 2 - outer.top - outer.height / 2,
      );
    }
    this.onChoose(part);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => {
      if (!this.svg) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      const unit = event.deltaMode === 1 ? 16 : 1;
      if (event.ctrlKey || event.metaKey) {
        this.zoom(Math.exp(-event.deltaY * unit * 0.004), event.clientX - box.left, event.clientY - box.top);
      } else if (event.shiftKey && !event.deltaX) {
        this.move(event.deltaY * unit, 0);
      } else {
        this.move(event.deltaX * unit, event.deltaY * unit);
      }
    }, { passive: false });
    const fingers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const last = fingers.get(event.pointerId);
      if (!last) return;
      const [x, y] = [event.clientX - last[0], event.clientY - last[1]];
      moved += Math.abs(x) + Math.abs(y);
      if (moved <= 4) return;
      if (!canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
      if (fingers.size === 1) {
        this.move(-x, -y);
      } else {
        const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
        const span = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
        const box = canvas.getBoundingClientRect();
        this.zoom(span([event.clientX, event.clientY]) / span(last), other[0] - box.left, other[1] - box.top);
      }
      fingers.set(event.pointerId, [event.clientX, event.clientY]);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => fingers.delete(event.pointerId));
    }
    canvas.addEventListener("click", (event) => {
      if (moved > 4) return;
      const part = event.target.closest("g.node, g.cluster, g.cluster-text, g.edge, g.edge-text");
      this.choose(part && this.svg?.contains(part) ? part : null, false);
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = event.shiftKey ? 240 : 60;
      const act = {
        ArrowLeft: () => this.move(-step, 0), ArrowRight: () => this.move(step, 0),
        ArrowUp: () => this.move(0, -step), ArrowDown: () => this.move(0, step),
        PageUp: () => this.move(0, -canvas.clientHeight * 0.8), PageDown: () => this.move(0, canvas.clientHeight * 0.8),
        "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8), "−": () => this.zoom(0.8),
        0: () => this.all(), 1: () => this.zoom(1 / this.view.scale), Home: () => this.begin(),
      }[event.key];
      if (act && this.svg) { event.preventDefault(); act(); }
    });
  }
}
