// The sequences: one card each with its block table in logical order. Cards out of sight are not drawn.

import {PREEMPTED, RUNNING} from "./state.js";
import {blockOf, drawCell, drawSpot} from "./cell.js";
import {letterOf, palette} from "./palette.js";
import {make, seconds, setText} from "./dom.js";

const STATES = ["waiting", "running", "preempted"];
const SIZES = [[60, 27, 3], [260, 9, 1], [Infinity, 5, 1]]; // table entries up to which: pitch, gap

export class SequenceCards {
  constructor(root, {pick, hover, pickBlock}) {
    this.root = root;
    this.handlers = {pick, hover, pickBlock};
    this.cards = new Map();
    this.selected = null;
    this.seen = new IntersectionObserver(entries => {
      for (const entry of entries) entry.target.card.visible = entry.isIntersecting;
      this.redraw?.();
    }, {root, rootMargin: "80px"});
    this.more = make("p", {class: "quiet more"});
    root.append(this.more);
  }

  draw(state, all) {
    if (all || !this.width) this.width = this.root.clientWidth; // asked before anything is written
    const wanted = new Set(state.order);
    for (const [seq, card] of this.cards) {
      if (!wanted.has(seq)) { this.seen.unobserve(card.root); card.root.remove(); this.cards.delete(seq); }
    }
    let before = null;
    for (const seq of state.order) {
      const sequence = state.sequences.get(seq);
      if (!sequence) continue;
      let card = this.cards.get(seq);
      if (!card) {
        card = this.make(seq);
        this.cards.set(seq, card);
        this.seen.observe(card.root);
      }
      const place = before ? before.nextSibling : this.root.firstChild;
      if (card.root !== place) this.root.insertBefore(card.root, place);
      before = card.root;
      if (card.visible) this.fill(card, sequence, state, all);
    }
    const {running, waiting} = state.gauges, hidden = running + waiting - state.order.length;
    setText(this.more, hidden > 0 ? `and ${hidden} more` : state.order.length ? "" : "No request lives. The map keeps what can still be found.");
  }

  make(seq) {
    const letter = make("span", {class: "letter", text: letterOf(seq)});
    const id = make("span", {class: "id"}), chip = make("span", {class: "chip"});
    const numbers = make("span", {class: "numbers"}), canvas = make("canvas", {"aria-hidden": "true"});
    const bar = make("span", {class: "bar"}, make("i", {class: "cached"}), make("i", {class: "computed"}));
    const button = make("button", {class: "head", "aria-pressed": "false",
      onclick: () => this.handlers.pick(seq)}, letter, id, chip, numbers);
    const root = make("article", {class: "card", onmouseenter: () => this.handlers.hover(seq),
      onmouseleave: () => this.handlers.hover(null)}, button, bar, canvas);
    const card = {seq, root, button, letter, id, chip, numbers, bar, canvas, ink: canvas.getContext("2d"), visible: true, keys: []};
    root.card = card;
    canvas.addEventListener("click", event => {
      const at = this.entryAt(card, event.offsetX, event.offsetY);
      if (at >= 0) this.handlers.pickBlock(card.table[at]);
    });
    canvas.addEventListener("mousemove", event => {
      const at = this.entryAt(card, event.offsetX, event.offsetY);
      canvas.title = at >= 0 ? `logical ${at} is block ${card.table[at]}` : "";
    });
    return card;
  }

  fill(card, sequence, state, all) {
    const stateName = sequence.host ? "swapped" : STATES[sequence.state], chosen = this.selected === card.seq;
    setText(card.id, sequence.id || `sequence ${card.seq}`);
    setText(card.chip, stateName);
    card.chip.className = `chip ${stateName}`;
    card.letter.style.background = palette.owner(card.seq);
    const cached = sequence.cached ? ` (${sequence.cached} cached)` : "";
    const back = sequence.preemptions ? ` · ${sequence.preemptions}× preempted` : "";
    setText(card.numbers, `${sequence.prompt}${cached} + ${sequence.output} tokens · ${seconds(Math.max(0, state.t - sequence.arrival))}${back}`);
    const total = Math.max(1, sequence.prompt + sequence.output);
    card.bar.firstChild.style.width = `${100 * Math.min(1, sequence.cached / total)}%`;
    card.bar.lastChild.style.width = `${100 * Math.max(0, Math.min(1, sequence.computed / total) - sequence.cached / total)}%`;
    card.bar.lastChild.style.background = palette.owner(card.seq);
    card.root.classList.toggle("chosen", chosen);
    card.button.setAttribute("aria-pressed", chosen);
    const table = state.tables.get(card.seq) ?? [];
    card.table = table;
    this.strip(card, state, all);
  }

  // Draws those entries that changed; all of them when the strip has another size.
  strip(card, state, all) {
    const {table, ink} = card, scale = window.devicePixelRatio || 1;
    const [, pitch, gap] = SIZES.find(([count]) => table.length <= count);
    const columns = Math.max(1, Math.floor((this.width - 36) / pitch));
    const rows = Math.ceil(table.length / columns), size = `${pitch} ${columns} ${rows} ${scale}`;
    if (all || size !== card.size) this.resize(card, {size, pitch, gap, columns}, rows, scale);
    const large = pitch > 18, holders = large ? state.holders() : null;
    for (let at = 0; at < table.length; at++) {
      const block = table[at];
      const key = (state.flags[block] * 8192 + state.fill[block]) * 65536 + block % 65536 + (holders?.get(block)?.length ?? 0) * 2 ** 50;
      if (key === card.keys[at]) continue;
      card.keys[at] = key;
      const x = at % columns * pitch + 1, y = Math.floor(at / columns) * pitch + 1, one = blockOf(state, block, holders);
      ink.clearRect(x - 1, y - 1, pitch, pitch);
      if (large) drawCell(ink, x, y, pitch - gap - 1, one, scale, this.byState);
      else drawSpot(ink, x, y, pitch - gap, one, this.byState);
    }
    for (let at = table.length; at < card.keys.length; at++) ink.clearRect(at % columns * pitch, Math.floor(at / columns) * pitch, pitch, pitch);
    card.keys.length = table.length;
  }

  resize(card, layout, rows, scale) {
    const {canvas, ink} = card, {pitch, columns} = layout;
    Object.assign(card, layout, {keys: []});
    canvas.hidden = !rows;
    canvas.width = columns * pitch * scale;
    canvas.height = rows * pitch * scale;
    canvas.style.width = `${columns * pitch}px`;
    canvas.style.height = `${rows * pitch}px`;
    ink.setTransform(scale, 0, 0, scale, 0, 0);
  }

  entryAt(card, x, y) {
    const at = Math.floor(y / card.pitch) * card.columns + Math.floor(x / card.pitch);
    return card.table && at < card.table.length && x < card.columns * card.pitch ? at : -1;
  }

  // Where entry `at` of a sequence's table stands on the screen, or null when it is out of sight.
  placeOf(seq, at) {
    const card = this.cards.get(seq);
    if (!card?.visible || !card.table || at >= card.table.length) return null;
    const box = card.canvas.getBoundingClientRect(), room = this.root.getBoundingClientRect();
    const x = box.left + (at % card.columns + 0.5) * card.pitch;
    const y = box.top + (Math.floor(at / card.columns) + 0.5) * card.pitch;
    return y > room.top && y < room.bottom ? [x, y] : null;
  }
}

export function describe(sequence) {
  return sequence.state === RUNNING ? "running" : sequence.state === PREEMPTED ? "preempted" : "waiting";
}
