// Events in words, newest first; and which sparks each one throws.

import {make} from "./dom.js";
import {letterOf, palette} from "./palette.js";

const KEPT = 60;
const SIGNS = {hit: "○", evicted: "✕", copy: "↷", preempted: "▲", admitted: "→", ended: "■", session: "◆", fork: "Y", swap_out: "↥", swap_in: "↧"};

export class Happenings {
  constructor(list, pickSequence) {
    this.list = list;
    this.pickSequence = pickSequence;
  }

  add(events) {
    for (const event of events) {
      const text = words(event);
      if (text) this.list.prepend(this.item(event, text));
    }
    while (this.list.children.length > KEPT) this.list.lastChild.remove();
  }

  reset(events) {
    this.list.replaceChildren();
    this.add(events.slice().reverse());
  }

  item(event, text) {
    const item = make("li", {class: event.kind}, make("span", {class: "sign", text: SIGNS[event.kind] ?? "·"}));
    if (event.seq !== undefined) {
      const letter = make("button", {class: "letter", text: letterOf(event.seq), title: event.id,
        onclick: () => this.pickSequence(event.seq)});
      letter.style.background = palette.owner(event.seq);
      item.append(letter);
    }
    item.append(make("span", {text}));
    return item;
  }
}

function words(event) {
  const blocks = n => `${n} block${n === 1 ? "" : "s"}`;
  switch (event.kind) {
    case "hit": return `prefix hit: ${blocks(event.n)} shared${list(event.blocks)}`;
    case "evicted": return `evicted ${blocks(event.n)}${list(event.blocks)}`;
    case "copy": return `copy-on-write: ${event.pairs.map(([from, to]) => `${from} → ${to}`).slice(0, 4).join(", ")}`;
    case "swap_out": return `${blocks(event.n)} copied out to host memory${list(event.blocks)}`;
    case "swap_in": return `${blocks(event.n)} copied back from host memory${list(event.blocks)}`;
    case "preempted": return `${event.id} preempted: its blocks were needed`;
    case "admitted": return `${event.id} got its row${event.cached ? `; ${event.cached} tokens from the cache` : ""}`;
    case "ended": return `${event.id || "a request"} ended: ${event.reason}, ${event.output} tokens`;
    case "session": return event.up ? "a session with a worker began" : "the worker is gone; everybody waits";
    case "missed": return `and ${event.n} more, too many to tell`;
    case "fork": return `${event.id} forked into ${event.n} branches`;
    default: return "";
  }
}

function list(blocks) {
  if (!blocks.length) return "";
  return ` (${blocks.slice(0, 6).join(", ")}${blocks.length > 6 ? ", …" : ""})`;
}
