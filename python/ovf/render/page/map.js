// The map: rows of ranks, cells of ops, drawn on a canvas; and which op is under a point.

const GUTTER = 66, TOP = 24, ROW_MOST = 40, ROW_SEEN = 9;

/** "#rrggbb" -> [r, g, b]. */
function rgb(hex) {
  const n = parseInt(hex.trim().slice(1), 16);
  return [n >> 16 & 255, n >> 8 & 255, n & 255];
}

function packed([r, g, b]) {
  return (255 << 24 | b << 16 | g << 8 | r) >>> 0; // little-endian ImageData
}

function mixed(a, b, share) {
  return a.map((v, i) => Math.round(v * (1 - share) + b[i] * share));
}

/** Colours of the theme, and for each class its ground and its pattern: both tell states apart, so no colour has to. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => rgb(style.getPropertyValue("--" + name));
  const wait = colour("wait"), panel = colour("panel");
  const ground = new Uint32Array(16), pattern = new Uint32Array(16);
  CLASSES.forEach((name, i) => {
    const base = colour(name);
    const marks = i === ABSORBED || i === UNKNOWN ? mixed(base, panel, 0.62)
      : i === INTENDED || i === IGNORED ? mixed(base, panel, 0.7) : base;
    ground[i | MATCHED] = packed(base);
    pattern[i | MATCHED] = packed(marks);
    ground[i] = pattern[i] = packed(i <= CLEAN ? mixed(base, wait, 0.55) : mixed(base, wait, 0.78));
  });
  ground[MATCHED] = pattern[MATCHED] = ground[0] = pattern[0] = packed(wait);
  const css = {};
  for (const name of ["ink", "muted", "line", "accent", "origin", "path", "halo", "panel", "propagated"]) {
    css[name] = style.getPropertyValue("--" + name).trim();
  }
  css.font = style.getPropertyValue("--sans").trim();
  return { ground, pattern, css };
}

/** Whether a class shows its pattern at a pixel (in CSS pixels). */
function isPattern(cls, x, y) {
  switch (cls & 7) {
    case ABSORBED: return (x + y) % 5 < 2;
    case INTENDED: return x % 4 === 1 && y % 3 === 1;
    case IGNORED: return y % 4 < 1;
    case UNKNOWN: return (x + y) % 4 < 1 || (x - y + 4000) % 4 < 1;
    default: return false;
  }
}

/** Paints a sample of a class for legends and cards. */
function swatch(canvas, cls, colours) {
  const w = canvas.width = 22, h = canvas.height = 13;
  const image = new ImageData(w, h), words = new Uint32Array(image.data.buffer);
  for (let y = 0; y < h; y++) {
    for (let x = 0; x < w; x++) words[y * w + x] = (isPattern(cls, x, y) ? colours.pattern : colours.ground)[cls | MATCHED];
  }
  const context = canvas.getContext("2d");
  context.putImageData(image, 0, 0);
  if (cls === ORIGIN) star(context, w / 2, h / 2, 5, "#fff", null);
}

function star(context, x, y, r, fill, edge) {
  context.beginPath();
  for (let i = 0; i < 10; i++) {
    const angle = Math.PI * (i / 5 - 0.5), reach = i % 2 ? r * 0.45 : r;
    context.lineTo(x + reach * Math.cos(angle), y + reach * Math.sin(angle));
  }
  context.closePath();
  if (edge) { context.lineWidth = 3; context.lineJoin = "round"; context.strokeStyle = edge; context.stroke(); }
  context.fillStyle = fill;
  context.fill();
}

class RankMap {
  constructor(canvas, atlas, story) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.atlas = atlas;
    this.story = story;
    this.rows = atlas.rows;
    this.allLinks = false;
    this.selected = null;
    this.hovered = null;
    this.place = new Map();
    this.waiting = false;
    this.colours = palette();
    this.setRows(atlas.rows);
  }

  setRows(rows) {
    this.rows = rows;
    this.place = new Map(rows.map((row, i) => [row.rank, i]));
    this.fit();
  }

  recolour() {
    this.colours = palette();
    this.draw();
  }

  /** The whole map. */
  fit() {
    this.x0 = 0;
    this.x1 = this.atlas.width();
    this.y0 = 0;
    this.y1 = Math.max(1, this.rows.length);
    this.draw();
  }

  resize() {
    const width = Math.max(320, this.canvas.parentElement.clientWidth);
    const height = TOP + Math.round(Math.min(Math.max(this.rows.length * 40, 60), 440));
    this.ratio = Math.min(window.devicePixelRatio || 1, 3);
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.canvas.style.height = height + "px";
    this.paint();
  }

  get plotWidth() { return this.width - GUTTER; }
  get plotHeight() { return this.height - TOP; }
  get scaleX() { return this.plotWidth / (this.x1 - this.x0); }
  get rowHeight() { return Math.min(this.plotHeight / (this.y1 - this.y0), Math.max(ROW_MOST, this.plotHeight / 6)); }
  pixelX(x) { return GUTTER + (x - this.x0) * this.scaleX; }
  pixelY(index) { return TOP + (index - this.y0) * this.rowHeight; }

  /** Middle of an op's cell in CSS pixels, or null when its row is filtered out. */
  point(rank, op) {
    const index = this.place.get(rank), row = this.atlas.rowOf.get(rank);
    if (index === undefined || !row || op >= row.ops) return null;
    return { x: this.pixelX(this.atlas.x(row, op) + 0.5), y: this.pixelY(index + 0.5) };
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (this.width) this.paint();
    });
  }

  // --- view -----------------------------------------------------------------------------------------------------

  clamp() {
    const wide = this.atlas.width(), tall = Math.max(1, this.rows.length);
    const spanX = Math.min(Math.max(this.x1 - this.x0, 6), wide), spanY = Math.min(Math.max(this.y1 - this.y0, Math.min(3, tall)), tall);
    this.x0 = Math.min(Math.max(this.x0, 0), wide - spanX);
    this.x1 = this.x0 + spanX;
    this.y0 = Math.min(Math.max(this.y0, 0), tall - spanY);
    this.y1 = this.y0 + spanY;
  }

  zoom(by, byY, atX, atY) {
    const x = this.x0 + (atX ?? 0.5) * (this.x1 - this.x0), y = this.y0 + (atY ?? 0.5) * (this.y1 - this.y0);
    this.x0 = x + (this.x0 - x) * by;
    this.x1 = x + (this.x1 - x) * by;
    this.y0 = y + (this.y0 - y) * byY;
    this.y1 = y + (this.y1 - y) * byY;
    this.clamp();
    this.draw();
  }

  pan(dx, dy) {
    this.x0 += dx;
    this.x1 += dx;
    this.y0 += dy;
    this.y1 += dy;
    this.clamp();
    this.draw();
  }

  /** Brings an op into view, close enough to tell it from its neighbours. */
  show(rank, op, closer) {
    const index = this.place.get(rank), row = this.atlas.rowOf.get(rank);
    if (index === undefined || !row) return;
    const x = this.atlas.x(row, op) + 0.5;
    if (closer && this.x1 - this.x0 > 160) { this.x0 = x - 60; this.x1 = x + 60; }
    if (closer && this.rowHeight < ROW_SEEN) {
      const half = this.plotHeight / (2 * 14);
      this.y0 = index + 0.5 - half;
      this.y1 = index + 0.5 + half;
    }
    if (x < this.x0 + 1 || x > this.x1 - 1) {
      const half = (this.x1 - this.x0) / 2;
      this.x0 = x - half;
      this.x1 = x + half;
    }
    if (index < this.y0 || index + 1 > this.y1) {
      const half = (this.y1 - this.y0) / 2;
      this.y0 = index + 0.5 - half;
      this.y1 = index + 0.5 + half;
    }
    this.clamp();
    this.draw();
  }

  /** The op under a point: the strongest of those that share it. */
  hit(px, py) {
    if (px < GUTTER || py < TOP) return null;
    const reach = 3, from = this.x0 + (px - reach - GUTTER) / this.scaleX, to = this.x0 + (px + reach - GUTTER) / this.scaleX;
    const tall = this.rowHeight, top = this.y0 + (py - TOP) / tall;
    const first = Math.floor(tall < 3 ? top - 2 / tall : top), last = Math.floor(tall < 3 ? top + 2 / tall : top);
    let best = null;
    for (let index = Math.max(0, first); index <= Math.min(last, this.rows.length - 1); index++) {
      const row = this.rows[index];
      if (row.broken) continue;
      const exact = this.atlas.opAt(row, this.x0 + (px - GUTTER) / this.scaleX);
      if (exact >= 0 && this.scaleX >= 6) return { row, op: exact, more: 0 };
      const segments = this.atlas.segments(row);
      for (let i = Math.max(0, lastAtMost(segments.start, from)); i < segments.start.length && segments.start[i] <= to; i++) {
        if (segments.end[i] <= from || (best && segments.code[i] <= best.code)) continue;
        best = { code: segments.code[i], row, x: Math.max(segments.start[i], Math.ceil(from)) };
      }
    }
    if (!best) return null;
    const op = this.atlas.opAt(best.row, best.x);
    return op < 0 ? null : { row: best.row, op, more: Math.max(0, Math.round(1 / this.scaleX) - 1) };
  }

  // --- painting -------------------------------------------------------------------------------------------------

  paint() {
    const { context, ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillStyle = this.colours.css.panel;
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.paintCells();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintAxis();
    this.paintRanks();
    context.save();
    context.beginPath();
    context.rect(GUTTER, TOP, this.plotWidth, this.plotHeight);
    context.clip();
    if (this.scaleX > 34 && this.rowHeight > 13) this.paintNames();
    this.paintLinks();
    this.paintPath();
    this.paintMarks();
    context.restore();
  }

  /** One line of classes, a device pixel each. */
  line(row, width) {
    const line = new Uint8Array(width);
    if (row.broken) return line;
    const { start, end, code } = this.atlas.segments(row);
    const scale = this.scaleX * this.ratio;
    const minor = scale < 1 && !this.atlas.matches ? new Float32Array(width) : null;
    for (let i = Math.max(0, lastAtMost(start, this.x0)); i < start.length && start[i] < this.x1; i++) {
      const from = Math.max(0, Math.floor((start[i] - this.x0) * scale));
      const to = Math.min(width, Math.max(from + 1, Math.ceil((end[i] - this.x0) * scale)));
      const what = code[i];
      if (minor && (what === (INTENDED | MATCHED) || what === (IGNORED | MATCHED))) {
        // What is harmless shows from afar only where it is most of what there is.
        for (let p = from; p < to; p++) {
          minor[p] += (Math.min(end[i], this.x0 + (p + 1) / scale) - Math.max(start[i], this.x0 + p / scale)) * scale;
          if (minor[p] < 0.5) line[p] = Math.max(line[p], CLEAN | MATCHED);
          else if (line[p] < what) line[p] = what;
        }
        continue;
      }
      for (let p = from; p < to; p++) if (line[p] < what) line[p] = what;
    }
    if (this.scaleX >= 6) { // a thread of ground between ops
      for (let x = Math.ceil(this.x0); x < this.x1; x++) {
        const p = Math.floor((x - this.x0) * scale);
        if (p < width) line[p] = 0;
      }
    }
    return line;
  }

  paintCells() {
    const { ratio, colours } = this;
    const left = Math.round(GUTTER * ratio), top = Math.round(TOP * ratio);
    const width = this.canvas.width - left, height = this.canvas.height - top;
    if (width <= 0 || height <= 0) return;
    const image = new ImageData(width, height), words = new Uint32Array(image.data.buffer);
    words.fill(colours.ground[0]);
    const tall = this.rowHeight * ratio, lines = new Map();
    const between = tall >= 5 * ratio ? Math.max(1, Math.round(Math.min(tall * 0.14, 3 * ratio))) : 0;
    const step = Math.max(1, Math.round(ratio));
    const lineOf = (row) => {
      const key = row.broken ? "" : this.atlas.segments(row).key;
      let line = lines.get(key);
      if (!line) lines.set(key, line = this.line(row, width));
      return line;
    };
    let strongest = null, at = -1;
    const flush = () => { if (strongest) this.paintLine(words, width, height, strongest, at, at + 1, step); };
    for (let i = Math.max(0, Math.floor(this.y0)); i < Math.min(this.rows.length, Math.ceil(this.y1)); i++) {
      const from = Math.round((i - this.y0) * tall), to = Math.round((i + 1 - this.y0) * tall) - between;
      const line = lineOf(this.rows[i]);
      if (tall >= 1) {
        this.paintLine(words, width, height, line, from, Math.max(to, from + 1), step);
      } else if (from === at) {
        for (let p = 0; p < width; p++) if (strongest[p] < line[p]) strongest[p] = line[p];
      } else {
        flush();
        strongest = line.slice();
        at = from;
      }
    }
    flush();
    this.context.putImageData(image, left, top);
  }

  paintLine(words, width, height, line, from, to, step) {
    const { ground, pattern } = this.colours;
    const plain = to - from < 4 * step; // too thin for a pattern
    for (let y = Math.max(0, from); y < Math.min(height, to); y++) {
      const base = y * width, py = Math.floor(y / step);
      for (let p = 0; p < width; p++) {
        const what = line[p];
        if (what === 0) continue;
        words[base + p] = !plain && isPattern(what, Math.floor(p / step), py) ? pattern[what] : ground[what];
      }
    }
  }

  paintAxis() {
    const { context, colours } = this;
    context.font = `11px ${colours.css.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    const wanted = this.plotWidth / 90, raw = (this.x1 - this.x0) / wanted, power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)));
    const every = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= raw) || 1;
    for (let x = Math.ceil(this.x0 / every) * every; x < this.x1; x += every) {
      const px = Math.round(this.pixelX(x)) + 0.5;
      context.strokeStyle = colours.css.line;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(px, TOP - 5);
      context.lineTo(px, TOP);
      context.stroke();
      context.fillStyle = colours.css.muted;
      if (px > GUTTER + 6 && px < this.width - 14) context.fillText(x.toLocaleString("en"), px, TOP / 2 - 1);
    }
    context.textAlign = "right";
    context.fillStyle = colours.css.muted;
    context.fillText("rank", GUTTER - 8, TOP / 2 - 1);
  }

  paintRanks() {
    const { context, colours, story } = this;
    const tall = this.rowHeight;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = 2 ** Math.max(0, Math.ceil(Math.log2(12 / tall)));
    for (let i = Math.max(0, Math.floor(this.y0)); i < Math.min(this.rows.length, Math.ceil(this.y1)); i++) {
      const row = this.rows[i], y = this.pixelY(i + 0.5);
      const isOrigin = row.rank === story.originRank, chosen = this.selected && this.selected.row === row;
      if ((i % every && !isOrigin && !chosen) || y < TOP + 2) continue;
      if (tall < 11 && !isOrigin && !chosen && story.originRank !== null) {
        const near = this.place.get(story.originRank);
        if (near !== undefined && Math.abs(near - i) * tall < 11) continue;
      }
      context.font = `${isOrigin || chosen ? "700 " : ""}11px ${colours.css.font}`;
      context.fillStyle = isOrigin ? colours.css.origin : chosen ? colours.css.accent : colours.css.ink;
      context.fillText(String(row.rank), GUTTER - 8, y);
      const reached = story.reach.get(row.rank);
      if (tall >= 11 && reached !== undefined) {
        context.font = `10px ${colours.css.font}`;
        context.fillStyle = isOrigin ? colours.css.origin : colours.css.muted;
        context.textAlign = "left";
        context.fillText(isOrigin ? "★" : `+${reached}`, 5, y);
        context.textAlign = "right";
      }
      if (row.broken) {
        context.textAlign = "left";
        context.fillStyle = colours.css.muted;
        context.font = `italic 11px ${colours.css.font}`;
        context.fillText("not readable", GUTTER + 8, y);
        context.textAlign = "right";
      }
    }
  }

  /** Operator names in cells that have the room. */
  paintNames() {
    const { context, colours, atlas } = this;
    context.font = `10px ${colours.css.font}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let i = Math.max(0, Math.floor(this.y0)); i < Math.min(this.rows.length, Math.ceil(this.y1)); i++) {
      const row = this.rows[i];
      if (row.broken) continue;
      for (let x = Math.floor(this.x0); x < this.x1; x++) {
        const op = atlas.opAt(row, x);
        if (op < 0) continue;
        const cls = atlas.shown(row, op, atlas.state(row, op));
        const px = this.pixelX(x + 0.5), y = this.pixelY(i + 0.5);
        let text = atlas.short(row, op);
        const room = this.scaleX - 6;
        while (text.length > 2 && context.measureText(text).width > room) text = text.slice(0, -2) + "…";
        context.fillStyle = cls === ORIGIN ? "#fff" : colours.css.ink;
        if (cls === ABSORBED || cls === INTENDED || cls === IGNORED) {
          const wide = context.measureText(text).width;
          context.fillStyle = colours.css.panel;
          context.globalAlpha = 0.82;
          context.fillRect(px - wide / 2 - 2, y - 7, wide + 4, 14);
          context.globalAlpha = 1;
          context.fillStyle = colours.css.ink;
        }
        context.fillText(text, px, y);
      }
    }
  }

  curve(a, b) {
    const bow = Math.min(26, Math.max(8, Math.abs(b.y - a.y) * 0.12));
    this.context.moveTo(a.x, a.y);
    this.context.bezierCurveTo(a.x + bow, a.y, b.x - (b.x - a.x > 2 * bow ? bow : -bow), b.y, b.x, b.y);
  }

  /** Communications that carried it: first arrivals, and all carriers where asked for. */
  paintLinks() {
    const { context, colours, story } = this;
    const visible = (a, b) => a && b && Math.min(a.x, b.x) < this.width && Math.max(a.x, b.x) > GUTTER;
    if (this.allLinks) {
      context.strokeStyle = colours.css.propagated;
      context.globalAlpha = 0.35;
      context.lineWidth = 1;
      context.beginPath();
      let drawn = 0;
      for (const [, from, to] of story.links) {
        for (let k = 0; k < to.length && drawn < 30000; k += 2) {
          const a = this.point(from[0] ?? to[0], from[1] ?? to[1]), b = this.point(to[k], to[k + 1]);
          if (visible(a, b)) { this.curve(a, b); drawn++; }
        }
      }
      context.stroke();
    }
    context.strokeStyle = colours.css.path;
    context.globalAlpha = story.arrivals > 64 ? 0.3 : 0.6;
    context.lineWidth = story.arrivals > 64 ? 0.8 : 1.2;
    context.beginPath();
    const rails = [];
    for (const [, from, op, to, arrivals] of story.hops) {
      const a = this.point(from, op), ends = to.map((rank, k) => this.point(rank, arrivals[k])).filter(Boolean);
      const at = a && ends.length > 6 && ends.every((b) => Math.abs(b.x - a.x) < 2);
      if (at) rails.push([a, Math.min(a.y, ...ends.map((b) => b.y)), Math.max(a.y, ...ends.map((b) => b.y))]);
      else for (const b of ends) if (visible(a, b)) this.curve(a, b);
    }
    context.stroke();
    context.globalAlpha = 1;
    // A collective that reached many: one rail over its members, not a line each.
    for (const [a, top, bottom] of rails) {
      for (const [width, colour] of [[5, colours.css.halo], [2, colours.css.path]]) {
        context.strokeStyle = colour;
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(a.x, top);
        context.lineTo(a.x, bottom);
        context.stroke();
      }
      context.fillStyle = colours.css.path;
      context.beginPath();
      context.arc(a.x, a.y, 3.5, 0, 7);
      context.fill();
    }
    if (this.rowHeight < 7) return;
    context.fillStyle = colours.css.path;
    for (const [, , , to, arrivals] of story.hops) {
      to.forEach((rank, k) => {
        const b = this.point(rank, arrivals[k]);
        if (!b) return;
        context.beginPath();
        context.moveTo(b.x + 1, b.y);
        context.lineTo(b.x - 5, b.y - 3.5);
        context.lineTo(b.x - 5, b.y + 3.5);
        context.fill();
      });
    }
  }

  paintPath() {
    const { context, colours, story } = this;
    const points = story.path.map(([rank, op]) => this.point(rank, op)).filter(Boolean);
    if (points.length < 2) return;
    context.lineJoin = context.lineCap = "round";
    for (const [width, colour] of [[5, colours.css.halo], [2.2, colours.css.path]]) {
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.globalAlpha = width === 5 ? 0.85 : 1;
      context.beginPath();
      points.forEach((p, i) => (i ? context.lineTo(p.x, p.y) : context.moveTo(p.x, p.y)));
      context.stroke();
    }
    context.globalAlpha = 1;
    const [end] = points.slice(-1);
    context.fillStyle = colours.css.path;
    context.strokeStyle = colours.css.halo;
    context.lineWidth = 2;
    context.beginPath();
    context.rect(end.x - 4.5, end.y - 4.5, 9, 9);
    context.fill();
    context.stroke();
  }

  paintMarks() {
    const { context, colours, story } = this;
    const [first, ...others] = story.findings;
    context.fillStyle = colours.css.origin;
    context.strokeStyle = colours.css.halo;
    for (const [rank, op] of others.reverse()) {
      const p = this.point(rank, op);
      if (!p) continue;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(p.x, p.y - 6);
      context.lineTo(p.x + 6, p.y);
      context.lineTo(p.x, p.y + 6);
      context.lineTo(p.x - 6, p.y);
      context.closePath();
      context.stroke();
      context.fill();
    }
    others.reverse();
    for (const [chosen, colour, width] of [[this.hovered, colours.css.muted, 1.5], [this.selected, colours.css.accent, 2.5]]) {
      if (!chosen || !this.place.has(chosen.row.rank)) continue;
      const left = this.pixelX(this.atlas.x(chosen.row, chosen.op)), y = this.pixelY(this.place.get(chosen.row.rank));
      const wide = Math.max(this.scaleX, 5), tall = Math.max(this.rowHeight, 5);
      context.strokeStyle = colour;
      context.lineWidth = width;
      context.strokeRect(left - (wide - this.scaleX) / 2 - 1, y - (tall - this.rowHeight) / 2 - 0.5, wide + 2, tall + 1);
    }
    const p = first && this.point(first[0], first[1]);
    if (p) star(context, p.x, p.y, 9, colours.css.origin, colours.css.halo);
  }
}
