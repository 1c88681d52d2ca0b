// Filters, the card, pointer and keys. Text from the data is only ever set as text.

/** "0,3,8-15" as a test; null where it is no list of ranks. */
function rankTest(text) {
  if (text.trim() === "") return () => true;
  const parts = [];
  for (const part of text.split(",")) {
    const found = /^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$/.exec(part);
    if (!found) return null;
    parts.push([Number(found[1]), Number(found[2] ?? found[1])]);
  }
  return (rank) => parts.some(([from, to]) => rank >= from && rank <= to);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/** `layers.0.mlp (MLP)` for `Module.layers.0.mlp.MLP.forward.0`. */
function moduleName(name) {
  const found = /^(?:Module|Cell)\.(?:(.*)\.)?([^.]+)\.(?:forward|backward)\.\d+$/.exec(name);
  return found ? (found[1] ? `${found[1]} (${found[2]})` : found[2]) : name;
}

const WORDS = {
  wait: "waiting", clean: "clean", unknown: "not judged", ignored: "unwritten memory", intended: "intended",
  absorbed: "absorbed", propagated: "propagated", origin: "origin",
};
const CAUSES = {
  computed: "made here out of finite inputs", from_intended: "made here out of intended values",
  parameter: "first reader of a bad weight", input: "first reader of bad data", corruption: "first reader of a changed buffer",
  unrecorded: "first reader of a value that is not in the dump", register: "the overflow register was set",
};

/** The card of one op. */
class Card {
  constructor(box, spoken, map, story) {
    Object.assign(this, { box, spoken, map, story, kept: false });
  }

  lines(row, op) {
    const atlas = this.map.atlas, state = atlas.state(row, op), cls = atlas.shown(row, op, state);
    const root = row.roots.get(op), key = `${row.rank}:${op}`;
    let words = WORDS[CLASSES[cls]];
    if (state === ORIGIN && root) words = `${root.harm ? "origin" : "healed"}: ${CAUSES[root.cause] || root.cause}`;
    if (state === PROPAGATED && cls === ORIGIN) words = "origin: made by the communication";
    if (state === ABSORBED && cls === INTENDED) words = "a mask ends here";
    if (row.rank === this.story.originRank && op === this.story.originOp) words = "first overflow";
    return { cls, words, name: printable(atlas.name(row, op)), phase: atlas.phase(row, op), look: atlas.look(row, op), detail: this.story.details[key] };
  }

  fill(row, op, more) {
    const said = this.lines(row, op), box = this.box;
    box.replaceChildren();
    const badge = element("div", "badge"), sample = element("canvas");
    badge.append(sample, element("span", "", said.words));
    box.append(badge, element("div", "name", said.name));
    swatch(sample, said.cls, this.map.colours);
    box.append(element("div", "line quiet", `rank ${row.rank}, op ${op.toLocaleString("en")} of ${row.ops.toLocaleString("en")}, ${said.phase}`));
    if (said.detail) {
      if (said.detail.reason) box.append(element("div", "line", printable(said.detail.reason)));
      if (said.detail.values.length) box.append(this.table(said.detail.values));
    } else if (said.look) {
      for (const [spot, word] of [[said.look[0], "takes in"], [said.look[1], "gives out"]]) {
        if (spot) box.append(element("div", "line", `${word} ${spot.class} in ${printable(spot.slot)}, ${printable(spot.dtype)} [${spot.shape.join(", ")}]`));
      }
    }
    const [module, place, code] = this.map.atlas.site(row, op);
    if (module) box.append(element("div", "line", "module " + moduleName(printable(module))));
    if (place) box.append(element("div", "line quiet", printable(place)));
    if (code) box.append(element("div", "code", printable(code)));
    for (const line of this.story.carried(row.rank, op)) box.append(element("div", "line", line));
    if (more > 0) box.append(element("div", "line quiet", `${more.toLocaleString("en")} more ops share this pixel; zoom in to tell them apart`));
    return said;
  }

  table(values) {
    const table = element("table");
    for (const [slot, dtype, shape, max, min, kind] of values.slice(0, 8)) {
      const row = element("tr");
      row.append(element("td", "", slot), element("td", "quiet", `${dtype} [${shape.join(", ")}]`));
      row.append(element("td", "num", kind === "unknown" ? "–" : `${min} … ${max}`));
      table.append(row);
    }
    return table;
  }

  show(row, op, at, { keep = false, more = 0, speak = false } = {}) {
    const said = this.fill(row, op, more);
    this.kept = keep;
    this.box.classList.toggle("kept", keep);
    this.box.hidden = false;
    const stage = this.box.parentElement, wide = this.box.offsetWidth, tall = this.box.offsetHeight;
    let left = at.x + 16, top = at.y + 14;
    if (left + wide > stage.clientWidth - 4) left = at.x - wide - 16;
    if (top + tall > stage.clientHeight + 60) top = at.y - tall - 12;
    this.box.style.left = Math.max(4, left) + "px";
    this.box.style.top = Math.max(-40, top) + "px";
    if (speak) {
      const values = said.look ? said.look.filter(Boolean).map((s) => `${s.class} in ${printable(s.slot)}`).join(", ") : "";
      this.spoken.textContent = `rank ${row.rank}, op ${op}, ${said.name}, ${said.words}${values ? ", " + values : ""}`;
    }
  }

  hide() {
    this.box.hidden = true;
    this.kept = false;
  }
}

/** Everything that moves the map. */
class Controls {
  constructor(map, card, story, find) {
    Object.assign(this, { map, card, story, find });
    this.group = null;
    this.makeLegend();
    this.makeGroups();
    this.listenToFilters();
    this.listenToPointer();
    this.listenToKeys();
    this.listenToJumps();
  }

  makeLegend() {
    const counts = new Map();
    for (const row of this.map.atlas.rows) {
      if (row.broken) continue;
      const runs = this.map.atlas.runs(row);
      for (let i = 0; i < runs.starts.length; i++) {
        const from = runs.starts[i], to = i + 1 < runs.starts.length ? runs.starts[i + 1] : row.ops, state = runs.state[i];
        const add = (cls, count) => counts.set(cls, (counts.get(cls) || 0) + count);
        if (state !== ORIGIN && state !== ABSORBED && !(state === PROPAGATED && row.found.size)) add(state, to - from);
        else for (let op = from; op < to; op++) add(this.map.atlas.shown(row, op, state), 1);
      }
    }
    this.hidden = new Set();
    this.samples = [];
    const legend = this.find("legend");
    for (const cls of [ORIGIN, PROPAGATED, ABSORBED, INTENDED, IGNORED, UNKNOWN, CLEAN]) {
      if (!counts.get(cls)) continue;
      const button = element("button", "state"), sample = element("canvas");
      button.type = "button";
      button.dataset.state = CLASSES[cls];
      button.setAttribute("aria-pressed", "true");
      button.append(sample, element("span", "", `${WORDS[CLASSES[cls]]} ${counts.get(cls).toLocaleString("en")}`));
      button.addEventListener("click", () => {
        const off = !this.hidden.delete(cls);
        if (off) this.hidden.add(cls);
        button.setAttribute("aria-pressed", String(!off));
        this.map.atlas.hide(this.hidden);
        this.map.draw();
      });
      if (cls === CLEAN) button.disabled = true;
      legend.append(button);
      this.samples.push([sample, cls]);
    }
    this.paintLegend();
  }

  paintLegend() {
    for (const [sample, cls] of this.samples) swatch(sample, cls, this.map.colours);
  }

  makeGroups() {
    const select = this.find("f-group");
    this.map.atlas.data.groups.forEach((group, i) => {
      const members = group.ranks.length ? group.ranks : this.map.atlas.rows.filter((r) => !r.broken && r.groups.includes(i)).map((r) => r.rank);
      if (!members.length) return;
      const ranks = members.length > 6 ? `${members.slice(0, 5).join(", ")}, … (${members.length})` : members.join(", ");
      const option = element("option", "", group.ranks.length || group.id ? `${ranks}${group.id ? "  " + printable(group.id).slice(0, 40) : ""}` : "default group");
      option.value = String(i);
      select.append(option);
      (this.groups ||= new Map()).set(String(i), new Set(members));
    });
    select.disabled = !this.groups;
  }

  apply() {
    const ranks = this.find("f-ranks"), test = rankTest(ranks.value);
    ranks.setAttribute("aria-invalid", String(test === null));
    const group = this.groups && this.groups.get(this.find("f-group").value);
    const rows = this.map.atlas.rows.filter((row) => (test || (() => true))(row.rank) && (!group || group.has(row.rank)));
    if (this.find("f-rows").value === "reach") {
      const place = (row) => this.story.reach.get(row.rank) ?? Infinity;
      rows.sort((a, b) => (place(a) === place(b) ? a.rank - b.rank : place(a) - place(b)));
    }
    this.map.setRows(rows);
    this.map.resize();
    this.count();
    this.card.hide();
  }

  count() {
    const rows = this.map.rows, atlas = this.map.atlas;
    let text = `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "rank" : "ranks"}`;
    if (atlas.matches) {
      const held = new Map();
      let matched = 0;
      for (const row of rows) {
        if (row.broken) continue;
        if (!held.has(row.names)) held.set(row.names, atlas.matches.get(row.names).reduce((a, b) => a + b, 0));
        matched += held.get(row.names);
      }
      text += `, ${matched.toLocaleString("en")} ${matched === 1 ? "op matches" : "ops match"}`;
    }
    this.find("f-count").textContent = text;
  }

  listenToFilters() {
    let later;
    this.find("filters").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["f-ranks", "f-group", "f-rows"]) this.find(id).addEventListener("input", () => this.apply());
    this.find("f-text").addEventListener("input", (event) => {
      clearTimeout(later);
      later = setTimeout(() => {
        this.map.atlas.filterText(event.target.value);
        this.count();
        this.map.draw();
      }, 120);
    });
    this.find("f-axis").addEventListener("input", (event) => {
      this.map.atlas.setAxis(event.target.value);
      this.card.hide();
      this.map.fit();
    });
    this.find("f-links").addEventListener("input", (event) => {
      this.map.allLinks = event.target.checked;
      this.map.draw();
    });
    const tools = { "z-in": () => this.map.zoom(0.5, 0.7), "z-out": () => this.map.zoom(2, 1.43), "z-fit": () => this.map.fit(), "z-origin": () => this.toOrigin() };
    for (const [id, act] of Object.entries(tools)) this.find(id)?.addEventListener("click", act);
  }

  toOrigin() {
    if (this.story.originRank !== null) this.jump(this.story.originRank, this.story.originOp);
  }

  /** Shows an op wherever it is: filters that hide its rank are taken off. */
  jump(rank, op) {
    const row = this.map.atlas.rowOf.get(rank);
    if (!row || row.broken || op >= row.ops) return;
    if (!this.map.place.has(rank)) {
      this.find("f-ranks").value = "";
      this.find("f-group").value = "";
      this.apply();
    }
    this.map.show(rank, op, true);
    this.select(row, op);
  }

  select(row, op) {
    this.map.selected = { row, op };
    this.map.hovered = null;
    this.map.draw();
    const at = this.map.point(row.rank, op);
    if (at) this.card.show(row, op, at, { keep: true, speak: true });
    for (const button of document.querySelectorAll(".step")) {
      const here = Number(button.dataset.rank) === row.rank && Number(button.dataset.op) === op;
      if (here) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
    }
  }

  listenToJumps() {
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-op]");
      if (!button) return;
      this.jump(Number(button.dataset.rank), Number(button.dataset.op));
      const box = this.find("stage").getBoundingClientRect();
      if (box.top < 0 || box.bottom > window.innerHeight) this.find("stage").scrollIntoView({ block: "center" });
    });
  }

  listenToPointer() {
    const canvas = this.map.canvas, map = this.map;
    let drag = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { ...at(event), moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const point = at(event);
      if (drag) {
        const dx = point.x - drag.x, dy = point.y - drag.y;
        if (!drag.moved && Math.hypot(dx, dy) < 4) return;
        drag.moved = true;
        canvas.classList.add("moving");
        this.card.hide();
        map.pan(-dx / map.scaleX, -dy / map.rowHeight);
        Object.assign(drag, point);
        return;
      }
      const hit = map.hit(point.x, point.y);
      map.hovered = hit && { row: hit.row, op: hit.op };
      if (!this.card.kept) {
        if (hit) this.card.show(hit.row, hit.op, point, { more: hit.more }); else this.card.hide();
      }
      map.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const was = drag;
      drag = null;
      canvas.classList.remove("moving");
      if (!was || was.moved) return;
      const point = at(event), hit = map.hit(point.x, point.y);
      if (hit) this.select(hit.row, hit.op); else { map.selected = null; this.card.hide(); map.draw(); }
    });
    canvas.addEventListener("pointerleave", () => {
      map.hovered = null;
      if (!this.card.kept) this.card.hide();
      map.draw();
    });
    canvas.addEventListener("wheel", (event) => {
      const point = at(event), fx = Math.max(0, (point.x - GUTTER) / map.plotWidth), fy = (point.y - TOP) / map.rowHeight / (map.y1 - map.y0);
      if (event.ctrlKey || event.metaKey) {
        const by = Math.exp(Math.max(-60, Math.min(60, event.deltaY || event.deltaX)) * 0.01);
        map.zoom(event.shiftKey ? 1 : by, event.shiftKey ? by : Math.sqrt(by), fx, fy);
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        map.pan(event.deltaX / map.scaleX, 0);
      } else return;
      this.card.hide();
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => {
      const point = at(event);
      map.zoom(0.25, 0.4, (point.x - GUTTER) / map.plotWidth, (point.y - TOP) / map.rowHeight / (map.y1 - map.y0));
    });
  }

  /** The next op of a kind to one side: bad ones, or those that match the name filter. */
  next(step) {
    const { row, op } = this.map.selected, atlas = this.map.atlas;
    for (let at = op + step; at >= 0 && at < row.ops; at += step) {
      const wanted = atlas.matches ? atlas.matched(row, at) : atlas.shown(row, at, atlas.state(row, at)) >= PROPAGATED;
      if (wanted) return at;
    }
    return op;
  }

  listenToKeys() {
    this.map.canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const map = this.map, atlas = map.atlas, rows = map.rows;
      if (event.key === "Escape") { map.selected = null; this.card.hide(); map.draw(); return; }
      const views = { "+": () => map.zoom(0.5, 0.7), "=": () => map.zoom(0.5, 0.7), "-": () => map.zoom(2, 1.43), 0: () => map.fit(), o: () => this.toOrigin(), O: () => this.toOrigin() };
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], n: [2, 0], N: [2, 0], p: [-2, 0], P: [-2, 0], Enter: [0, 0], Home: [-3, 0], End: [3, 0] }[event.key];
      if (views[event.key]) { views[event.key](); event.preventDefault(); return; }
      if (!move) return;
      event.preventDefault();
      if (!map.selected || !map.place.has(map.selected.row.rank)) {
        const row = rows.find((r) => r.rank === this.story.originRank) || rows.find((r) => !r.broken);
        if (!row) return;
        map.selected = { row, op: row.rank === this.story.originRank ? this.story.originOp : 0 };
      } else if (move[1]) {
        const x = atlas.x(map.selected.row, map.selected.op);
        let at = map.place.get(map.selected.row.rank) + move[1];
        while (rows[at] && rows[at].broken) at += move[1];
        const row = rows[at];
        if (!row) return;
        let op = atlas.opAt(row, x);
        for (let back = 1; op < 0 && back <= x; back++) op = atlas.opAt(row, x - back);
        map.selected = { row, op: Math.max(0, op) };
      } else if (Math.abs(move[0]) === 1) {
        map.selected.op = Math.min(map.selected.row.ops - 1, Math.max(0, map.selected.op + move[0]));
      } else if (Math.abs(move[0]) === 2) {
        map.selected.op = this.next(Math.sign(move[0]));
      } else if (move[0]) {
        map.selected.op = move[0] < 0 ? 0 : map.selected.row.ops - 1;
      }
      map.show(map.selected.row.rank, map.selected.op, false);
      this.select(map.selected.row, map.selected.op);
    });
  }
}
