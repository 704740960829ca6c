// The graph on a canvas: places come from graph.json, only what is in view is drawn.
import { call, duration, make, Problem, size, swatch } from "./api.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const STRIP = 600; // pixels of height that share a list of what is in them
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif";
const LEAST = 0.004, MOST = 2.5; // scale
const HEAT = [[0.05, "over 5 % of the time", 5], [0.01, "1 to 5 %", 1], [0.002, "0.2 to 1 %", 0], [0, "less", 7]];

export async function openGraph(job, artifact) {
  const [graph, timings] = await Promise.all([artifact("graph.json"), artifact("timings.json").catch(() => ({ operators: [] }))]);
  // A step of control flow is as long as it is with its bodies.
  const total = timings.operators.reduce((sum, o) => sum + o.seconds, 0) || 1;
  const whole = ({ seconds, seconds_with_bodies = seconds }) => ({ seconds: seconds_with_bodies, share: seconds_with_bodies / total });
  const view = new View(job, graph, new Map(timings.operators.map((o) => [o.name, { ...o, ...whole(o) }])));
  view.start();
  return graph;
}

class View {
  constructor(job, graph, times) {
    Object.assign(this, { job, graph, times, scale: 1, x: 0, y: 0, selected: -1, colour: "backend" });
    this.canvas = document.getElementById("canvas");
    this.overview = document.getElementById("overview");
    this.panel = document.getElementById("panel");
    this.nodes = graph.nodes;
    this.before = this.nodes.map(() => []);
    this.after = this.nodes.map(() => []);
    graph.edges.forEach((edge, i) => {
      this.after[edge.from].push(i);
      this.before[edge.to].push(i);
    });
    this.rows = new Map(); // by y, from left to right
    this.nodes.forEach((n, i) => this.rows.set(n.y, [...(this.rows.get(n.y) || []), i]));
    for (const row of this.rows.values()) row.sort((a, b) => this.nodes[a].x - this.nodes[b].x);
    this.strips = Array.from({ length: Math.floor(graph.height / STRIP) + 1 }, () => ({ nodes: [], edges: [] }));
    this.nodes.forEach((n, i) => this.spread("nodes", i, n.y - n.height / 2, n.y + n.height / 2));
    graph.edges.forEach((e, i) => e.points.length && this.spread("edges", i, e.points[0][1], e.points.at(-1)[1]));
  }

  spread(kind, i, top, bottom) {
    const last = this.strips.length - 1;
    const until = Math.min(Math.floor(bottom / STRIP), last);
    for (let s = Math.max(Math.floor(top / STRIP), 0); s <= until; s++) this.strips[s][kind].push(i);
  }

  start() {
    document.getElementById("drawing").hidden = true;
    this.paint();
    this.resize();
    this.begin();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.paint();
      this.redraw();
    });
    this.listen();
    this.draw();
    this.canvas.dataset.nodes = this.nodes.length;
  }

  // Colours

  category(node) {
    if (node.kind !== "step" && this.colour === "backend") return node.kind;
    if (this.colour !== "seconds") return node[this.colour];
    const share = this.times.get(node.name)?.share ?? 0;
    return HEAT.find(([least]) => share >= least)[1];
  }

  paint() {
    this.tones = Object.fromEntries(["text", "quiet", "line", "surface", "accent", "bg", "bad"].map((n) => [n, css(`--${n}`)]));
    const counts = new Map();
    for (const node of this.nodes) {
      const category = this.category(node);
      counts.set(category, (counts.get(category) || 0) + 1);
    }
    const heat = new Map(HEAT.map(([, text, c]) => [text, css(`--c${c}`)]));
    const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
    let used = 0;
    this.fills = new Map(
      names.map((name) => {
        if (this.colour === "seconds") return [name, heat.get(name)];
        const plain = ["input", "output"].includes(name) || used > 6;
        return [name, css(plain ? "--c7" : `--c${used++}`)];
      }),
    );
    const shown = this.colour === "seconds" ? HEAT.map(([, t]) => t).filter((t) => counts.has(t)) : names;
    document.getElementById("legend").replaceChildren(
      ...shown.slice(0, 12).map((n) => make("li", {}, swatch(this.fills.get(n)), `${n} (${counts.get(n)})`)),
      shown.length > 12 ? make("li", { class: "quiet" }, `and ${shown.length - 12} more`) : "",
    );
    this.sketch = null;
  }

  // Geometry

  resize() {
    const ratio = devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.overview]) {
      const { clientWidth, clientHeight } = canvas;
      canvas.width = Math.max(Math.round(clientWidth * ratio), 1);
      canvas.height = Math.max(Math.round(clientHeight * ratio), 1);
    }
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.ratio = ratio;
    this.sketch = null;
    this.redraw();
  }

  get clear() {
    return this.width - this.overview.clientWidth - 20; // beside the overview
  }

  begin() {
    const whole = this.fitting();
    this.scale = whole >= 0.55 ? Math.min(whole, 1.1) : Math.min(1, Math.max(0.55, (this.clear - 24) / this.graph.width));
    this.x = (this.clear - this.graph.width * this.scale) / 2;
    this.y = whole >= 0.55 ? Math.max((this.height - this.graph.height * this.scale) / 2, 16) : 20;
    if (this.graph.width * this.scale > this.clear) this.x = this.clear / 2 - this.nodes[0].x * this.scale;
    this.clamp();
  }

  fitting() {
    return Math.max(Math.min((this.clear - 24) / this.graph.width, (this.height - 32) / this.graph.height), LEAST);
  }

  all() {
    this.scale = Math.min(this.fitting(), 1.1);
    this.x = (this.clear - this.graph.width * this.scale) / 2;
    this.y = (this.height - this.graph.height * this.scale) / 2;
    this.redraw();
  }

  zoom(factor, x = this.clear / 2, y = this.height / 2) {
    const scale = Math.min(Math.max(this.scale * factor, Math.min(this.fitting(), 1)), MOST);
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.clamp();
    this.redraw();
  }

  pan(dx, dy) {
    const { x, y } = this;
    this.x += dx;
    this.y += dy;
    this.clamp();
    this.redraw();
    return Math.abs(this.x - x) + Math.abs(this.y - y) > 0.5;
  }

  clamp() {
    const keep = (at, extent, room) => (extent < room - 40 ? Math.min(Math.max(at, 20), room - extent - 20) : Math.min(Math.max(at, room - extent - 40), 40));
    this.x = keep(this.x, this.graph.width * this.scale, this.clear);
    this.y = keep(this.y, this.graph.height * this.scale, this.height);
  }

  center(i) {
    const { x, y } = this.nodes[i];
    const sx = x * this.scale + this.x, sy = y * this.scale + this.y;
    if (sx < 60 || sx > this.clear - 60) this.x = this.clear / 2 - x * this.scale;
    if (sy < 50 || sy > this.height - 50) this.y = this.height / 2 - y * this.scale;
    this.clamp();
    this.redraw();
  }

  at(sx, sy) {
    const x = (sx - this.x) / this.scale, y = (sy - this.y) / this.scale;
    const slack = Math.max(0, 6 / this.scale - 6);
    const strip = this.strips[Math.floor(y / STRIP)];
    if (!strip) return -1;
    return strip.nodes.find((i) => {
      const n = this.nodes[i];
      return Math.abs(n.x - x) <= n.width / 2 + slack && Math.abs(n.y - y) <= n.height / 2 + slack;
    }) ?? -1;
  }

  // Drawing

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.draw();
    });
  }

  draw() {
    const g = this.canvas.getContext("2d");
    const { scale, ratio, tones } = this;
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, this.canvas.width, this.canvas.height);
    g.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.x, ratio * this.y);
    const top = -this.y / scale, bottom = (this.height - this.y) / scale;
    const first = Math.max(Math.floor(top / STRIP), 0), last = Math.min(Math.floor(bottom / STRIP), this.strips.length - 1);
    const edges = new Set(), nodes = new Set();
    for (let s = first; s <= last; s++) {
      for (const i of this.strips[s].edges) edges.add(i);
      for (const i of this.strips[s].nodes) nodes.add(i);
    }
    g.lineWidth = Math.max(1.2, 0.6 / scale);
    g.strokeStyle = tones.quiet;
    g.globalAlpha = 0.55;
    g.beginPath();
    for (const i of edges) this.way(g, this.graph.edges[i].points);
    g.stroke();
    g.globalAlpha = 1;
    if (this.selected >= 0) {
      g.strokeStyle = tones.accent;
      g.lineWidth = Math.max(2.4, 1.4 / scale);
      g.beginPath();
      for (const i of [...this.before[this.selected], ...this.after[this.selected]]) this.way(g, this.graph.edges[i].points);
      g.stroke();
    }
    for (const i of nodes) this.box(g, i);
    this.drawOverview();
  }

  way(g, points) {
    if (!points.length) return;
    g.moveTo(points[0][0], points[0][1]);
    for (let k = 1; k < points.length; k++) {
      const [x0, y0] = points[k - 1], [x1, y1] = points[k];
      if (Math.abs(x0 - x1) < 2) g.lineTo(x1, y1);
      else {
        const bend = Math.min((y1 - y0) / 2, 60);
        g.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
      }
    }
    if (this.scale > 0.3) {
      const [x, y] = points.at(-1);
      g.moveTo(x - 3.5, y - 6);
      g.lineTo(x, y - 0.5);
      g.lineTo(x + 3.5, y - 6);
    }
  }

  box(g, i) {
    const n = this.nodes[i], { tones, scale } = this;
    const fill = this.fills.get(this.category(n));
    const left = n.x - n.width / 2, top = n.y - n.height / 2;
    if (scale < 0.22) {
      g.fillStyle = i === this.selected ? tones.accent : fill;
      const least = 1.2 / scale;
      g.fillRect(left, top, Math.max(n.width, least), Math.max(n.height, least));
      return;
    }
    const port = n.kind !== "step";
    g.beginPath();
    g.roundRect(left, top, n.width, n.height, port ? n.height / 2 : 7);
    g.fillStyle = tones.surface;
    g.fill();
    g.globalAlpha = port ? 0.12 : 0.2;
    g.fillStyle = fill;
    g.fill();
    g.globalAlpha = 1;
    g.strokeStyle = i === this.selected ? tones.accent : fill;
    g.lineWidth = i === this.selected ? 3 : 1.2;
    if (n.fallback) g.setLineDash([4, 3]);
    g.stroke();
    g.setLineDash([]);
    if (!port) {
      g.save();
      g.clip();
      g.fillStyle = fill;
      g.fillRect(left, top, 5, n.height);
      g.restore();
    }
    if (scale < 0.4) return;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.fillStyle = tones.text;
    g.font = `${port ? 500 : 600} 12px ${FONT}`;
    g.fillText(fitted(g, port ? n.name : n.op, n.width - 14), n.x + (port ? 0 : 2), n.y - (port ? 0 : 6.5));
    if (port) return;
    const time = this.times.get(n.name);
    g.fillStyle = tones.quiet;
    g.font = `400 10.5px ${FONT}`;
    const second = this.colour === "layout" ? n.layout : this.colour === "storage" ? n.storage : time ? duration(time.seconds) : n.implementation;
    g.fillText(fitted(g, second, n.width - 18), n.x + 2, n.y + 8.5);
  }

  drawOverview() {
    const { overview, ratio } = this;
    const g = overview.getContext("2d");
    const w = overview.clientWidth - 8, h = overview.clientHeight - 8;
    const across = w / this.graph.width, down = h / this.graph.height;
    this.mini = { across: Math.min(across, down * 8), down: Math.min(down, across * 8) };
    const { across: ax, down: dy } = this.mini;
    const ox = (this.mini.ox = 4 + (w - this.graph.width * ax) / 2);
    if (!this.sketch) {
      this.sketch = document.createElement("canvas");
      this.sketch.width = overview.width;
      this.sketch.height = overview.height;
      const s = this.sketch.getContext("2d");
      s.setTransform(ratio, 0, 0, ratio, 0, 0);
      for (const n of this.nodes) {
        s.fillStyle = this.fills.get(this.category(n));
        s.fillRect(ox + (n.x - n.width / 2) * ax, 4 + (n.y - n.height / 2) * dy, Math.max(n.width * ax, 2), Math.max(n.height * dy, 0.8));
      }
    }
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.clearRect(0, 0, overview.width, overview.height);
    g.drawImage(this.sketch, 0, 0);
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    const x = Math.max(ox + (-this.x / this.scale) * ax, 1.5), y = 4 + (-this.y / this.scale) * dy;
    const wide = Math.min((this.width / this.scale) * ax, overview.clientWidth - 1.5 - x), high = Math.max((this.height / this.scale) * dy, 3);
    g.strokeStyle = this.tones.accent;
    g.lineWidth = 1.5;
    g.strokeRect(x, y, wide, high);
    g.globalAlpha = 0.1;
    g.fillStyle = this.tones.accent;
    g.fillRect(x, y, wide, high);
    g.globalAlpha = 1;
    overview.hidden = this.graph.height * this.scale < this.height && this.graph.width * this.scale < this.width;
  }

  // Hands and keys

  listen() {
    const { canvas } = this;
    const pointers = new Map();
    let moved = 0, apart = 0;
    const place = (e) => {
      const box = canvas.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      pointers.set(e.pointerId, place(e));
      moved = 0;
      apart = 0;
    });
    canvas.addEventListener("pointermove", (e) => {
      const now = place(e), then = pointers.get(e.pointerId);
      if (!then) {
        canvas.style.cursor = this.at(...now) >= 0 ? "pointer" : "";
        return;
      }
      pointers.set(e.pointerId, now);
      const fingers = [...pointers.values()];
      if (fingers.length === 2) {
        const [a, b] = fingers;
        const distance = Math.hypot(a[0] - b[0], a[1] - b[1]);
        if (apart) this.zoom(distance / apart, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        apart = distance;
        moved = 99;
        return;
      }
      moved += Math.abs(now[0] - then[0]) + Math.abs(now[1] - then[1]);
      if (moved > 4) {
        canvas.classList.add("moving");
        this.pan(now[0] - then[0], now[1] - then[1]);
      }
    });
    const up = (e) => {
      if (!pointers.delete(e.pointerId)) return;
      canvas.classList.remove("moving");
      if (moved <= 4 && e.type === "pointerup") {
        const found = this.at(...place(e));
        this.select(found, false);
      }
      apart = 0;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("wheel", (e) => {
      const unit = e.deltaMode === 1 ? 24 : 1;
      if (e.ctrlKey || e.metaKey) {
        e.preventDefault();
        this.zoom(Math.exp(-e.deltaY * unit * 0.004), ...place(e));
      } else if (this.pan(-e.deltaX * unit, -e.deltaY * unit)) e.preventDefault(); // at its end the page scrolls
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => this.key(e));
    this.overview.addEventListener("pointerdown", (e) => {
      this.overview.setPointerCapture(e.pointerId);
      this.jump(e);
    });
    this.overview.addEventListener("pointermove", (e) => e.buttons && this.jump(e));
    document.getElementById("in").addEventListener("click", () => this.zoom(1.4));
    document.getElementById("out").addEventListener("click", () => this.zoom(1 / 1.4));
    document.getElementById("all").addEventListener("click", () => this.all());
    const colour = document.getElementById("colour");
    colour.addEventListener("change", () => {
      this.colour = colour.value;
      this.paint();
      this.redraw();
    });
    this.listenFinding();
    document.addEventListener("click", (e) => {
      const button = e.target.closest("button.step");
      if (!button) return;
      const name = button.dataset.step;
      // A step in a body is shown where the step that runs it is.
      const i = [(n) => n.name === name, (n) => name.startsWith(`${n.name}/`)].map((of) => this.nodes.findIndex(of)).find((at) => at >= 0) ?? -1;
      if (i < 0) return;
      document.getElementById("graph").scrollIntoView();
      this.select(i);
      this.canvas.focus({ preventScroll: true });
    });
  }

  jump(e) {
    const box = this.overview.getBoundingClientRect();
    const { across, down, ox } = this.mini;
    this.x = this.clear / 2 - ((e.clientX - box.left - ox) / across) * this.scale;
    this.y = this.height / 2 - ((e.clientY - box.top - 4) / down) * this.scale;
    this.clamp();
    this.redraw();
  }

  listenFinding() {
    const find = document.getElementById("find"), list = document.getElementById("steps");
    const matches = (text) => {
      const wanted = text.toLowerCase();
      return this.nodes.map((n, i) => i).filter((i) => `${this.nodes[i].name} ${this.nodes[i].op}`.toLowerCase().includes(wanted));
    };
    const go = async () => {
      const text = find.value.trim();
      if (!text) return;
      let i = this.nodes.findIndex((n) => n.name === text);
      if (i < 0) {
        const found = matches(text);
        i = found.find((k) => k > this.selected) ?? found[0] ?? -1; // again: the next one
      }
      if (i < 0) {
        try {
          const { decisions } = await call("GET", `/v1/jobs/${this.job}/decisions?node=${encodeURIComponent(text)}`);
          i = this.nodes.findIndex((n) => n.name === decisions[0].subject);
        } catch (error) {
          this.say(make("p", {}, error.message));
          return;
        }
      }
      this.select(i);
    };
    find.addEventListener("input", () => {
      const text = find.value.trim();
      list.replaceChildren(...(text.length > 1 ? matches(text).slice(0, 12).map((i) => make("option", { value: this.nodes[i].name }, this.nodes[i].op)) : []));
      if (this.nodes.some((n) => n.name === text)) go();
    });
    find.addEventListener("keydown", (e) => e.key === "Enter" && go());
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const i = this.selected, row = i >= 0 ? this.rows.get(this.nodes[i].y) : [];
    const nearest = (edges, end) => {
      const x = this.nodes[i].x;
      return edges.map((k) => this.graph.edges[k][end]).sort((a, b) => Math.abs(this.nodes[a].x - x) - Math.abs(this.nodes[b].x - x))[0];
    };
    const deeds = {
      ArrowDown: () => (i < 0 ? this.select(0) : this.select(nearest(this.after[i], "to") ?? i)),
      ArrowUp: () => (i < 0 ? this.select(0) : this.select(nearest(this.before[i], "from") ?? i)),
      ArrowRight: () => (i < 0 ? this.select(0) : this.select(row[row.indexOf(i) + 1] ?? i)),
      ArrowLeft: () => (i < 0 ? this.select(0) : this.select(row[row.indexOf(i) - 1] ?? i)),
      Home: () => this.select(0),
      End: () => this.select(this.nodes.length - 1),
      PageDown: () => this.pan(0, -this.height * 0.8),
      PageUp: () => this.pan(0, this.height * 0.8),
      Enter: () => i >= 0 && this.panel.focus(),
      Escape: () => this.select(-1),
      "+": () => this.zoom(1.25),
      "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8),
      0: () => this.all(),
    };
    if (!(e.key in deeds)) return;
    e.preventDefault();
    deeds[e.key]();
  }

  // What is told of one

  select(i, follow = true) {
    this.selected = i;
    this.canvas.dataset.selected = i < 0 ? "" : this.nodes[i].name;
    if (i < 0) {
      this.say(make("p", { class: "quiet" }, "Choose a step, by click or with the arrow keys."));
      this.redraw();
      return;
    }
    if (follow && this.scale < 0.4) {
      this.scale = 0.8;
      const n = this.nodes[i];
      this.x = this.clear / 2 - n.x * this.scale;
      this.y = this.height / 2 - n.y * this.scale;
    }
    if (follow) this.center(i);
    this.redraw();
    this.tell(i);
  }

  say(...parts) {
    this.panel.replaceChildren(...parts);
    this.panel.scrollTop = 0;
  }

  async tell(i) {
    const n = this.nodes[i], time = this.times.get(n.name);
    const flows = (edges, end) =>
      edges.flatMap((k) => this.graph.edges[k].values.map((name) => ({ name, other: this.graph.edges[k][end] })));
    const title = make("h3", {}, n.kind === "step" ? n.op : n.name);
    const facts = n.kind === "step"
      ? [["Step", n.name], ["Runs as", n.implementation], ["Backend", n.fallback ? `${n.backend}, for want of a kernel` : n.backend],
         ["Time", time ? `${duration(time.seconds)}, ${(time.share * 100).toFixed(1)} % of all` : null], ["Precision", n.precision], ["Writes", `${n.storage}, ${n.layout}`]]
      : [[n.kind === "input" ? "Input" : "Output", this.described(n.name)]];
    const parts = [title, table(facts)];
    for (const [text, edges, end] of [["Reads", this.before[i], "from"], ["Is read by", this.after[i], "to"]]) {
      const found = flows(edges, end);
      if (!found.length) continue;
      const rows = found.slice(0, 8).map(({ name, other }) => {
        const button = make("button", { type: "button", class: "as-link" }, name || "a value");
        button.addEventListener("click", () => {
          this.select(other);
          this.canvas.focus({ preventScroll: true });
        });
        return make("li", {}, button, " ", make("span", { class: "quiet" }, this.described(name)));
      });
      if (found.length > 8) rows.push(make("li", { class: "quiet" }, `and ${found.length - 8} more`));
      parts.push(make("h4", {}, text), make("ul", { class: "files" }, ...rows));
    }
    document.getElementById("told").textContent =
      n.kind === "step" ? `${n.op}, ${n.name}, ${n.backend}${time ? `, ${duration(time.seconds)}` : ""}` : `${n.kind} ${n.name}`;
    const place = make("div", {}, n.kind === "step" ? make("p", { class: "quiet" }, "Asking why…") : "");
    this.say(...parts, place);
    if (n.kind !== "step") return;
    try {
      const { decisions } = await call("GET", `/v1/jobs/${this.job}/decisions?node=${encodeURIComponent(n.name)}`);
      const row = decisions.find((d) => d.subject === n.name) || decisions[0];
      place.replaceChildren(...why(row));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      place.replaceChildren(make("p", { class: "quiet" }, error.message));
    }
  }

  described(name) {
    const v = this.graph.values[name];
    if (!v) return "";
    const shape = v.shape ? v.shape.join(" × ") || "scalar" : "unknown shape";
    return `${shape}, ${v.storage}${v.layout === "row-major" ? "" : `, ${v.layout}`}${v.bytes === null ? "" : `, ${size(v.bytes)}`}`;
  }
}

const table = (rows) =>
  make("dl", { class: "facts" }, ...rows.filter(([, v]) => v).map(([k, v]) => make("div", {}, make("dt", {}, k), make("dd", {}, v))));

function why(row) {
  const cost = (c) => (c.seconds === null || c.seconds === undefined ? "refused" : `${duration(c.seconds)}${c.measured ? ", measured" : ""}`);
  const laid = (c) => Object.entries(c.layouts || {}).map(([v, l]) => `${v} ${l}`).slice(0, 4).join(", ");
  const candidate = (c, chosen) =>
    make(
      "li",
      chosen ? { class: "chosen" } : {},
      make("div", { class: "top-line" }, make("b", {}, c.name), make("span", { class: c.seconds === null ? "quiet" : "" }, cost(c))),
      make("p", {}, [chosen ? "chosen" : "", c.backend === c.name ? "" : c.backend, c.bytes ? size(c.bytes) : "", laid(c)].filter(Boolean).join(" · ")),
      c.reason ? make("p", {}, c.reason) : "",
    );
  const chosen = { ...row, name: row.chosen };
  return [
    make("h4", {}, `Candidates (${row.alternatives.length + 1})`),
    make("ul", { class: "candidates" }, candidate(chosen, true), ...row.alternatives.map((a) => candidate(a, false))),
    ...(row.why_not_blocked ? [make("h4", {}, "Why its values are not blocked"), make("p", { class: "quiet" }, row.why_not_blocked)] : []),
    ...(row.nodes.length > 1
      ? [make("h4", {}, `Nodes (${row.nodes.length})`), make("p", { class: "tags" }, ...row.nodes.slice(0, 40).map((n) => make("span", { class: "tag" }, n)), row.nodes.length > 40 ? make("span", { class: "quiet" }, `and ${row.nodes.length - 40} more`) : "")]
      : []),
  ];
}

const widths = new Map();
function fitted(g, text, room) {
  const key = `${g.font}|${room}|${text}`;
  let found = widths.get(key);
  if (found === undefined) {
    found = text;
    if (g.measureText(text).width > room) {
      let low = 0, high = Math.min(text.length, 80);
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (g.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
        else high = middle - 1;
      }
      found = `${text.slice(0, low)}…`;
    }
    widths.set(key, found);
  }
  return found;
}
