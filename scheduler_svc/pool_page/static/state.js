// The pool as it was told: arrays over all blocks, sequences, tables. Applies updates; draws nothing.
// It is the stream's reader: what it holds after an update that says "whole" is the scheduler's own state.

export const FREE = 0, EVICTABLE = 1, ACTIVE = 2, FENCED = 3;
export const WAITING = 0, RUNNING = 1, PREEMPTED = 2;
const GAUGES = ["free", "evictable", "active", "fenced", "shared", "refs", "slotsAllocated", "slotsFilled",
  "running", "waiting", "preempted", "inFlight", "maxRows",
  "hostBlocks", "hostFree", "swapped"];
const COUNTERS = ["allocated", "freed", "evicted", "lookupTokens", "hitTokens", "recomputeHitTokens",
  "preemptions", "preemptedTokens", "generatedTokens", "computedTokens"];
const FIELDS = ["seq", "state", "prompt", "cached", "computed", "output", "blocks", "preemptions", "priority", "host", "arrival"];

export function stateOf(flags) { return flags & 3; }
export function isFindable(flags) { return (flags & 4) !== 0; }
export function refsOf(flags) { return flags >>> 3; }

export class PoolState {
  constructor() {
    this.t = 0;
    this.whole = false;
    this.pool = {session: "", model: "", blocks: 0, block_size: 0, bytes_per_block: 0};
    this.flags = new Uint32Array(0);
    this.fill = new Uint16Array(0);
    this.owner = new Uint32Array(0);
    this.sequences = new Map();
    this.order = [];
    this.tables = new Map();
    this.gauges = named(GAUGES, []);
    this.counters = named(COUNTERS, []);
    this.touched = null; // blocks changed since the last drawing; null: all of them
    this.version = 0;
  }

  clone() {
    const copy = new PoolState();
    Object.assign(copy, this);
    copy.flags = this.flags.slice();
    copy.fill = this.fill.slice();
    copy.owner = this.owner.slice();
    copy.sequences = new Map(this.sequences);
    copy.order = this.order.slice();
    copy.tables = new Map(this.tables);
    copy.touched = null;
    return copy;
  }

  apply(update) {
    this.t = update.t;
    this.whole = update.whole;
    this.version += 1;
    if (update.pool) this.begin(update.pool);
    if (update.gauges) this.gauges = named(GAUGES, update.gauges);
    if (update.counters) this.counters = named(COUNTERS, update.counters);
    const told = update.sequences;
    if (told) {
      for (const row of told.set) {
        const known = this.sequences.get(row[0]);
        const sequence = named(FIELDS, row);
        sequence.id = told.ids[row[0]] ?? (known ? known.id : "");
        this.sequences.set(row[0], sequence);
      }
      for (const seq of told.gone) this.sequences.delete(seq);
    }
    if (update.order) this.order = update.order;
    if (update.tables) this.applyTables(update.tables);
    if (update.blocks) this.applyBlocks(decode(update.blocks));
  }

  begin(pool) {
    this.pool = pool;
    this.flags = new Uint32Array(pool.blocks);
    this.fill = new Uint16Array(pool.blocks);
    this.owner = new Uint32Array(pool.blocks);
    this.tables = new Map();
    this.touched = null;
  }

  applyTables(told) {
    for (const seq of told.gone) this.tables.delete(seq);
    for (const [seq, start, blocks] of told.set) {
      const known = this.tables.get(seq) ?? [];
      this.tables.set(seq, known.slice(0, start).concat(blocks));
    }
  }

  applyBlocks(bytes) {
    let at = 0, place = 0;
    const next = () => {
      let value = 0, scale = 1, byte;
      do {
        byte = bytes[place++];
        value += (byte & 127) * scale;
        scale *= 128;
      } while (byte & 128);
      return value;
    };
    while (place < bytes.length) {
      at += next();
      const end = at + next(), flags = next(), fill = next(), owner = next();
      this.flags.fill(flags, at, end);
      this.fill.fill(fill, at, end);
      this.owner.fill(owner, at, end);
      if (this.touched) this.touched.push(at, end);
      at = end;
    }
  }

  // Sequence ids whose tables name each block, for as many tables as are told.
  holders() {
    if (this.heldAt === this.version && this.held) return this.held;
    const held = new Map();
    for (const [seq, table] of this.tables) {
      for (const block of table) {
        const list = held.get(block);
        if (list) list.push(seq); else held.set(block, [seq]);
      }
    }
    this.heldAt = this.version;
    return (this.held = held);
  }

  bytes() { return 10 * this.flags.length + 200 * this.sequences.size; }
}

function named(names, values) {
  return Object.fromEntries(names.map((name, i) => [name, values[i] ?? 0]));
}

function decode(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
