// What shapes and keys mean.

import {make} from "./dom.js";
import {drawCell} from "./cell.js";
import {palette} from "./palette.js";

const SAMPLES = [
  ["free", {flags: 0, fill: 0, owner: 0}], ["evictable", {flags: 1 | 4, fill: 16, owner: 0}],
  ["active", {flags: 2 | 1 << 3, fill: 10, owner: 1}],
  ["shared", {flags: 2 | 4 | 2 << 3, fill: 16, owner: 1, holders: [0, 1]}],
  ["fenced", {flags: 3, fill: 0, owner: 0}],
];
const KEYS = [["arrows, Enter", "move over the blocks of the map, look at one"], ["B", "to the map"],
  ["J  K", "next and previous request"], ["Space", "hold this moment, or go on live"], ["C", "colour by owner or by state"],
  ["L", "links of all, of the chosen, none"], ["T", "light or dark"], ["Esc", "choose nothing"], ["?", "this"]];
export const SIGNS = [["○ ring", "hit: the block was found by its content and shared"], ["✕ cross", "evicted: its content gave way"],
  ["↷ arrow", "copied on write"], ["↥ ↧", "copied out to host memory, and back"], ["dark rim", "held by two tables or more"], ["dot", "findable by its content"],
  ["stripes", "one for each holder"], ["fill", "slots that hold a token"]];

export function legend(root, byState = false) {
  root.replaceChildren();
  for (const [name, block] of SAMPLES) {
    const canvas = make("canvas", {width: 32, height: 32, "aria-hidden": "true"}), ink = canvas.getContext("2d");
    ink.setTransform(2, 0, 0, 2, 0, 0);
    drawCell(ink, 1, 1, 14, {...block, blockSize: 16, label: ""}, 2, byState);
    root.append(make("span", {class: "sample"}, canvas, name));
  }
  palette.patterns = null;
}

export function fillKeys(dialog) {
  const list = (title, rows) => [make("h2", {text: title}), make("dl", {}, ...rows.flatMap(([key, text]) =>
    [make("dt", {text: key}), make("dd", {text})]))];
  dialog.append(...list("Keys", KEYS), ...list("Signs", SIGNS),
    make("button", {text: "Close", onclick: () => dialog.close()}));
}
