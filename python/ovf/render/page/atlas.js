"use strict";
// Every op of every rank: names, states and places, read from the packed data. Knows nothing of drawing.

// What a cell shows, weakest first: where several ops share a pixel the strongest is seen.
const WAIT = 0, CLEAN = 1, UNKNOWN = 2, IGNORED = 3, INTENDED = 4, ABSORBED = 5, PROPAGATED = 6, ORIGIN = 7;
const CLASSES = ["wait", "clean", "unknown", "ignored", "intended", "absorbed", "propagated", "origin"];
const MATCHED = 8; // added where the name filter matches (everywhere without one)
const LONGEST = 400;

/** Text with control and direction signs made visible, cut where nobody would read on. */
function printable(text) {
  const chars = Array.from(text.length > LONGEST * 4 ? text.slice(0, LONGEST * 4) : text);
  const cut = chars.length > LONGEST ? chars.slice(0, LONGEST).join("") + `... (${text.length} characters)` : text;
  return cut.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => "\\u{" + c.codePointAt(0).toString(16) + "}");
}

/** Last index whose value is not above `x`, or -1. */
function lastAtMost(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (sorted[mid] <= x) low = mid + 1; else high = mid;
  }
  return low - 1;
}

/** Whether a name holds the text: yes, no, or a test of its call number. */
function stemTest(before, after, wanted) {
  const head = before.toLowerCase();
  if (head.includes(wanted)) return true;
  if (after === null) return false;
  const tail = after.toLowerCase();
  if (tail.includes(wanted)) return true;
  const tests = [];
  for (let from = 0; from < wanted.length; from++) { // the number may begin or end anywhere in the text
    for (let to = from + 1; to <= wanted.length && /^\d+$/.test(wanted.slice(from, to)); to++) {
      const left = wanted.slice(0, from), digits = wanted.slice(from, to), right = wanted.slice(to);
      if (!head.endsWith(left) || !tail.startsWith(right)) continue;
      if (left && right) tests.push((n) => n === digits);
      else if (left) tests.push((n) => n.startsWith(digits));
      else if (right) tests.push((n) => n.endsWith(digits));
      else tests.push((n) => n.includes(digits));
    }
  }
  return tests.length > 0 && ((number) => tests.some((test) => test(number)));
}

class Atlas {
  constructor(data) {
    this.data = data;
    this.axis = "logical";
    this.lists = new Map();
    this.states = new Map();
    this.shifts = new Map();
    this.standings = new Map();
    this.segmentsKept = new Map();
    this.matches = null;
    this.hidden = new Set();
    this.rows = data.ranks.map((r) => {
      const roots = new Map(r.roots.map((root) => [root.op, root]));
      return { ...r, roots, found: new Set(), signature: r.roots.map((root) => `${root.op}${root.harm ? "!" : ""}`).join() + r.roots_omitted };
    });
    this.rowOf = new Map(this.rows.map((row) => [row.rank, row]));
  }

  /** Stem, call number (-1: none) and phase of each op of a list of names. */
  list(index) {
    let list = this.lists.get(index);
    if (list) return list;
    const { ops, jumps, phases } = this.data.names[index];
    const numbers = new Float64Array(ops.length).fill(-1);
    const counters = new Map(); // stem -> [last, step]
    let jump = 0;
    for (let i = 0; i < ops.length; i++) {
      if (this.data.stems[ops[i]][1] === null) continue;
      let counter = counters.get(ops[i]);
      if (!counter) counters.set(ops[i], counter = [-1, 1]);
      let number = counter[0] + counter[1];
      if (jump < jumps.length && jumps[jump] === i) {
        number = jumps[jump + 1];
        jump += 2;
        counter[1] = number < counter[0] ? -1 : 1;
      }
      numbers[i] = counter[0] = number;
    }
    const phaseStarts = [], phaseWords = [];
    for (let i = 0, at = 0; i < phases.length; at += phases[i + 1], i += 2) {
      phaseStarts.push(at);
      phaseWords.push(this.data.phase_names[phases[i]]);
    }
    list = { ops, numbers, phaseStarts, phaseWords };
    this.lists.set(index, list);
    return list;
  }

  /** Notes a finding: a communication that made a bad value out of finite ones is no root of a rank. */
  find(rank, op) {
    const row = this.rowOf.get(rank);
    if (!row || op >= row.ops || this.state(row, op) < PROPAGATED) return;
    row.found.add(op);
    row.signature += `f${op}`;
  }

  name(row, op) {
    const list = this.list(row.names);
    const [before, after] = this.data.stems[list.ops[op]];
    return after === null ? before : before + list.numbers[op] + after;
  }

  /** The operator's short name: what fits into a cell. */
  short(row, op) {
    const [before] = this.data.stems[this.list(row.names).ops[op]];
    const parts = before.split(".").filter((p) => p !== "" && p !== "forward" && p !== "backward");
    return printable(parts[parts.length - 1] || before);
  }

  phase(row, op) {
    const list = this.list(row.names);
    return list.phaseWords[lastAtMost(list.phaseStarts, op)] || "";
  }

  /** Runs of equal states: starts, words, and how many notable ops stand before each. */
  runs(row) {
    let runs = this.states.get(row.states);
    if (runs) return runs;
    const flat = this.data.states[row.states];
    const count = flat.length / 2;
    runs = { starts: new Uint32Array(count), state: new Uint8Array(count), notable: new Uint32Array(count) };
    for (let i = 0, at = 0, notable = 0; i < count; i++) {
      const word = this.data.state_names[flat[2 * i]];
      runs.starts[i] = at;
      runs.notable[i] = notable;
      runs.state[i] = CLASSES.indexOf(word);
      at += flat[2 * i + 1];
      if (word !== "clean" && word !== "unknown") notable += flat[2 * i + 1];
    }
    this.states.set(row.states, runs);
    return runs;
  }

  /** State by the record, as it is counted. */
  state(row, op) {
    const runs = this.runs(row);
    return runs.state[lastAtMost(runs.starts, op)];
  }

  /**
   * What a cell shows: an origin that led elsewhere on its rank is a consequence, one that did no harm is healed; an
   * op where nothing but a mask ends belongs to the mask.
   */
  shown(row, op, state) {
    if (row.found.has(op)) return ORIGIN;
    if (state === ABSORBED) {
      const look = this.look(row, op);
      return look && look[0] && look[0].class === "-inf" ? INTENDED : ABSORBED;
    }
    if (state !== ORIGIN) return state;
    const root = row.roots.get(op);
    if (!root) return row.roots_omitted ? ORIGIN : PROPAGATED;
    return root.harm ? ORIGIN : ABSORBED;
  }

  /** What is bad in an op: [taken, given], or null. */
  look(row, op) {
    const runs = this.runs(row);
    const at = lastAtMost(runs.starts, op);
    if (at < 0 || runs.state[at] <= UNKNOWN) return null;
    return this.data.looks[this.data.seen[row.seen][runs.notable[at] + op - runs.starts[at]]] || null;
  }

  /** Module record, `file:line in function` and source line of an op; nulls where nothing is recorded. */
  site(row, op) {
    let stands = this.standings.get(row.stands);
    if (!stands) {
      const flat = this.data.stands[row.stands];
      stands = { starts: [], sites: [] };
      for (let i = 0, at = 0; i < flat.length; at += flat[i + 1], i += 2) {
        stands.starts.push(at);
        stands.sites.push(flat[i]);
      }
      this.standings.set(row.stands, stands);
    }
    const at = lastAtMost(stands.starts, op);
    return at < 0 ? [null, null, null] : this.data.sites[stands.sites[at]];
  }

  /** Where ops move right: ops, and the whole shift from each on. */
  shift(row) {
    let shift = this.shifts.get(row.gaps);
    if (shift) return shift;
    const flat = this.data.gaps[row.gaps];
    shift = { ops: new Uint32Array(flat.length / 2), by: new Float64Array(flat.length / 2) };
    for (let i = 0, sum = 0; i < shift.ops.length; i++) {
      shift.ops[i] = flat[2 * i];
      shift.by[i] = sum += flat[2 * i + 1];
    }
    this.shifts.set(row.gaps, shift);
    return shift;
  }

  x(row, op) {
    if (this.axis === "own") return op;
    const shift = this.shift(row);
    const at = lastAtMost(shift.ops, op);
    return at < 0 ? op : op + shift.by[at];
  }

  /** The op at a place, or -1 where the rank waits or has ended. */
  opAt(row, x) {
    const at = Math.floor(x);
    if (at < 0) return -1;
    if (this.axis === "own") return at < row.ops ? at : -1;
    const shift = this.shift(row);
    let low = 0, high = row.ops; // first op whose place is behind x
    while (low < high) {
      const mid = (low + high) >> 1;
      const k = lastAtMost(shift.ops, mid);
      if (mid + (k < 0 ? 0 : shift.by[k]) <= at) low = mid + 1; else high = mid;
    }
    const op = low - 1;
    return op >= 0 && Math.floor(this.x(row, op)) === at ? op : -1;
  }

  width() {
    return this.rows.reduce((most, row) => Math.max(most, row.ops ? this.x(row, row.ops - 1) + 1 : 0), 1);
  }

  /** Which ops of each list of names hold the text; counted once a list. */
  filterText(text) {
    this.segmentsKept.clear();
    const wanted = text.trim().toLowerCase();
    if (wanted === "") {
      this.matches = null;
      return;
    }
    this.matches = new Map();
    const tests = this.data.stems.map(([before, after]) => stemTest(before, after, wanted));
    for (const row of this.rows) {
      if (this.matches.has(row.names)) continue;
      const list = this.list(row.names);
      const held = new Uint8Array(list.ops.length);
      for (let i = 0; i < held.length; i++) {
        const test = tests[list.ops[i]];
        held[i] = typeof test === "boolean" ? test : test(String(list.numbers[i]));
      }
      this.matches.set(row.names, held);
    }
  }

  matched(row, op) {
    return this.matches === null || this.matches.get(row.names)[op] === 1;
  }

  hide(classes) {
    this.hidden = classes;
    this.segmentsKept.clear();
  }

  setAxis(axis) {
    this.axis = axis;
    this.segmentsKept.clear();
  }

  /** A row's cells as runs on the axis: start, end, class (with MATCHED). Shared by rows that look the same. */
  segments(row) {
    const key = `${row.states}/${row.seen}/${row.gaps}/${this.matches ? row.names : ""}/${row.ops}/${row.signature}`;
    let kept = this.segmentsKept.get(key);
    if (kept) return kept;
    const start = [], end = [], code = [];
    const runs = this.runs(row);
    const held = this.matches && this.matches.get(row.names);
    const jumps = this.axis === "own" ? { ops: [], by: [] } : this.shift(row);
    let jump = 0, by = 0;
    const put = (from, to, what) => {
      // A run of one class, cut where the rank waits.
      while (from < to) {
        while (jump < jumps.ops.length && jumps.ops[jump] <= from) by = jumps.by[jump++];
        const stop = jump < jumps.ops.length && jumps.ops[jump] < to ? jumps.ops[jump] : to;
        const last = code.length - 1;
        if (last >= 0 && code[last] === what && end[last] === from + by) end[last] = stop + by;
        else { start.push(from + by); end.push(stop + by); code.push(what); }
        from = stop;
      }
    };
    const show = (from, to, cls) => {
      const what = this.hidden.has(cls) ? CLEAN : cls;
      if (!held) return put(from, to, what | MATCHED);
      for (let at = from; at < to;) {
        const same = held[at];
        let stop = at + 1;
        while (stop < to && held[stop] === same) stop++;
        put(at, stop, what | (same ? MATCHED : 0));
        at = stop;
      }
    };
    for (let i = 0; i < runs.starts.length; i++) {
      const from = runs.starts[i], to = i + 1 < runs.starts.length ? runs.starts[i + 1] : row.ops;
      const state = runs.state[i];
      const single = state === ORIGIN || state === ABSORBED || (state === PROPAGATED && row.found.size > 0);
      if (!single) show(from, to, state);
      else for (let op = from; op < to; op++) show(op, op + 1, this.shown(row, op, state));
    }
    kept = { key, start: Float64Array.from(start), end: Float64Array.from(end), code: Uint8Array.from(code) };
    this.segmentsKept.set(key, kept);
    return kept;
  }
}

/** Base64 of deflated JSON -> data. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}
