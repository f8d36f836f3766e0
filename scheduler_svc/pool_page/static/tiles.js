// The numbers over the map.

import {bytes, make, setText, thousands} from "./dom.js";

const RATE_SECONDS = 3;

export class Tiles {
  constructor(root) {
    this.root = root;
    this.tiles = new Map();
    this.past = [];
  }

  draw(state) {
    const g = state.gauges, c = state.counters, total = state.pool.blocks;
    const share = (part, whole) => whole ? `${(100 * part / whole).toFixed(part && part / whole < 0.1 ? 1 : 0)} %` : "–";
    const rate = this.rate(state), size = state.pool.bytes_per_block;
    this.put("in use", share(g.active, total), `${thousands(g.active)} of ${thousands(total)} blocks`, "active");
    this.put("shared", thousands(g.shared), `${thousands(Math.max(0, g.refs - g.active))} saved`, "shared");
    this.put("evictable", thousands(g.evictable), "held by nobody", "evictable");
    this.put("free", thousands(g.free), size ? `${bytes(size)} a block` : "", "free");
    this.put("fenced", thousands(g.fenced), "in a transfer", "fenced", g.hostBlocks > 0);
    this.put("host memory", share(g.hostBlocks - g.hostFree, g.hostBlocks), `${thousands(g.swapped)} swapped`, "", g.hostBlocks > 0);
    this.put("slots filled", share(g.slotsFilled, g.slotsAllocated), `${thousands(g.slotsAllocated - g.slotsFilled)} empty`);
    this.put("prefix hits", share(c.hitTokens, c.lookupTokens), `${thousands(c.hitTokens)} of ${thousands(c.lookupTokens)}`);
    this.put("running", thousands(g.running), `${thousands(g.waiting)} waiting`);
    this.put("tokens/s", rate.tokens === null ? "–" : thousands(Math.round(rate.tokens)), `${thousands(c.generatedTokens)} generated`);
    this.put("evictions", thousands(c.evicted), rate.evicted ? `${thousands(Math.round(rate.evicted))} a second` : "of findable blocks");
    this.put("preemptions", thousands(c.preemptions), `${thousands(c.preemptedTokens)} lost`);
  }

  rate(state) {
    this.past = this.past.filter(one => one.t > state.t - RATE_SECONDS && one.t <= state.t);
    this.past.push({t: state.t, c: state.counters});
    const [first] = this.past, span = state.t - first.t;
    if (span < 0.5) return {tokens: null, evicted: 0};
    const since = name => (state.counters[name] - first.c[name]) / span;
    return {tokens: since("generatedTokens"), evicted: since("evicted")};
  }

  put(name, value, note, state, shown = true) {
    let tile = this.tiles.get(name);
    if (!tile) {
      tile = {value: make("b"), note: make("small"), box: make("div", {class: "tile"})};
      const label = make("span", {text: name});
      if (state) label.prepend(make("i", {class: `swatch ${state}`}));
      tile.box.append(label, tile.value, tile.note);
      this.root.append(tile.box);
      this.tiles.set(name, tile);
    }
    tile.box.hidden = !shown;
    setText(tile.value, value);
    setText(tile.note, note);
  }
}
