// What was clicked: a block with its holders, hash chain and age, or a request with the scheduler's own words.

import {make, seconds} from "./dom.js";
import {letterOf, palette} from "./palette.js";
import {blockOf, drawCell} from "./cell.js";
import {SIGNS} from "./legend.js";
import {isFindable, refsOf, stateOf} from "./state.js";

const STATES = ["free", "evictable", "active", "fenced"];
const MEANING = [
  "no content", "nobody holds it; its content can still be found, until the block is taken",
  "held by a block table", "nobody holds it, but a transfer that names it has not been acknowledged"];

export class Inspector {
  constructor(root, stream, {pickBlock, pickSequence}) {
    this.root = root;
    this.stream = stream;
    this.pickBlock = pickBlock;
    this.pickSequence = pickSequence;
    this.shown = "";
  }

  nothing() {
    this.put("nothing", [make("h2", {text: "Look closer"}),
      make("p", {class: "quiet", text: "Click a block to see who holds it, its place in the hash chain and its age; "
        + "click a request to see why it waits or what it was served."}), facts(SIGNS)]);
  }

  // Only replaces what is shown when it says something else, so that a reader is not disturbed.
  put(key, children) {
    const text = key + children.map(child => child.outerHTML).join("");
    if (text === this.shown) return;
    this.shown = text;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.root.replaceChildren(...children);
    if (focused) this.root.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  async block(block, state, live) {
    const flags = state.flags[block], kind = stateOf(flags);
    const found = live ? await this.answer(`block/${block}`) : null;
    const rows = [["state", `${STATES[kind]}: ${MEANING[kind]}`],
      ["tokens", `${state.fill[block]} of ${state.pool.block_size} slots filled`],
      ["references", `${refsOf(flags)}${refsOf(flags) > 1 ? `, so ${refsOf(flags) - 1} saved by sharing` : ""}`],
      ["findable", isFindable(flags) ? "yes, by its content" : "no"]];
    const parts = [];
    if (found) {
      if (found.key) rows[3][1] = `by key ${found.key.slice(0, 16)}…`;
      if (found.held_for !== null) rows.push(["age", `handed out ${seconds(found.held_for)} ago`]);
      if (found.idle_for !== null) rows.push(["idle", `for ${seconds(found.idle_for)}`]);
      if (found.key) parts.push(this.chain(found));
    }
    const holders = found ? found.holders : (state.holders().get(block) ?? []).map(seq =>
      ({seq, id: state.sequences.get(seq)?.id ?? "", logical: state.tables.get(seq).indexOf(block)}));
    if (holders.length) parts.unshift(this.held(holders));
    const picture = this.picture(block, state);
    this.put(`block ${block}`, [make("h2", {}, picture, ` Block ${block}`), facts(rows), ...parts,
      ...(live ? [] : [past()])]);
    this.redraw(block, state);
  }

  picture() {
    return make("canvas", {class: "portrait", width: 88, height: 88, "aria-hidden": "true"});
  }

  redraw(block, state) {
    const canvas = this.root.querySelector("canvas.portrait");
    if (!canvas) return;
    const ink = canvas.getContext("2d");
    ink.setTransform(2, 0, 0, 2, 0, 0);
    ink.clearRect(0, 0, 44, 44);
    drawCell(ink, 2, 2, 40, blockOf(state, block, state.holders()), 2, false);
  }

  held(holders) {
    const list = make("p", {class: "chips"}, "held by ");
    for (const {seq, id, logical} of holders.slice(0, 24)) {
      list.append(this.chip(`${id || `sequence ${seq}`} [${logical}]`, `s${seq}-${logical}`, () => this.pickSequence(seq), seq));
    }
    if (holders.length > 24) list.append(` and ${holders.length - 24} more`);
    return list;
  }

  chain(found) {
    const list = make("p", {class: "chips"}, "hash chain ");
    if (found.rooted) list.append(make("span", {class: "root", text: "root"}), " ▸ ");
    else list.append("… ▸ ");
    for (const parent of found.parents.slice().reverse()) list.append(this.blockChip(parent), " ▸ ");
    list.append(make("strong", {text: String(found.block)}));
    found.children.forEach((child, i) => list.append(i ? " " : " ▸ ", this.blockChip(child)));
    return list;
  }

  blockChip(block) { return this.chip(String(block), `b${block}`, () => this.pickBlock(block)); }

  chip(text, key, onclick, seq) {
    const button = make("button", {class: "chipbutton", "data-key": key, text, onclick});
    if (seq !== undefined) {
      const letter = make("span", {class: "letter", text: letterOf(seq)});
      letter.style.background = palette.owner(seq);
      button.prepend(letter, " ");
    }
    return button;
  }

  async sequence(seq, state, live) {
    const known = state.sequences.get(seq), found = live ? await this.answer(`sequence/${seq}`) : null;
    const letter = make("span", {class: "letter", text: letterOf(seq)});
    letter.style.background = palette.owner(seq);
    const name = found?.explanation.request.request_id || known?.id || `sequence ${seq}`;
    const parts = [make("h2", {}, letter, ` ${name}`)];
    if (found) {
      const [first, ...more] = (found.explanation.text ?? "").split("\n");
      parts.push(make("p", {class: "why", text: first}), ...more.map(line => make("p", {text: line})));
    } else if (live) {
      parts.push(make("p", {class: "why", text: "It has ended."}));
    }
    if (known) {
      parts.push(facts([["prompt", `${known.prompt} tokens, ${known.cached} from the cache`],
        ["scheduled", `${known.computed} tokens`], ["generated", `${known.output} tokens`],
        ["blocks", String(known.blocks)], ["preempted", `${known.preemptions} times`],
        ["priority", String(known.priority)], ["age", seconds(Math.max(0, state.t - known.arrival))]]));
    }
    if (found?.blocks.length) parts.push(this.table(found));
    if (!live) parts.push(past());
    this.put(`sequence ${seq}`, parts);
  }

  table(found) {
    const list = make("p", {class: "chips"}, "block table ");
    for (const [block, refs] of found.blocks.slice(0, 96)) {
      list.append(this.chip(refs > 1 ? `${block}×${refs}` : String(block), `b${block}`, () => this.pickBlock(block)), " ");
    }
    if (found.num_blocks > 96) list.append(` and ${found.num_blocks - 96} more`);
    return list;
  }

  async answer(path) {
    try { return await this.stream.ask(path); } catch { return null; }
  }
}

function facts(rows) {
  const list = make("dl");
  for (const [name, value] of rows) list.append(make("dt", {text: name}), make("dd", {text: value}));
  return list;
}

function past() {
  return make("p", {class: "quiet", text: "This is the past: reasons and keys are only known of the present."});
}
