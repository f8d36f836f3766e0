// The links of block tables: from an entry, in logical order, to its physical block on the map.
// All of them while they are few enough to be read, else those of the chosen sequence or block.

import {palette} from "./palette.js";

const FEW = 56, MOST = 400;

export class Curves {
  constructor(canvas, map, cards) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.map = map;
    this.cards = cards;
    this.mode = "auto"; // auto, chosen, none
  }

  draw(state, {sequence, block}) {
    const main = this.canvas.parentElement.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
    const wide = Math.round(main.width * scale), high = Math.round(main.height * scale);
    if (this.canvas.width !== wide || this.canvas.height !== high) [this.canvas.width, this.canvas.height] = [wide, high];
    const ink = this.ink, entries = [...state.tables.values()].reduce((sum, table) => sum + table.length, 0);
    const everybody = this.mode === "auto" && entries <= FEW;
    const wanted = this.mode !== "none" && (everybody || sequence !== null || block >= 0);
    if (!wanted && !this.drawn) return;
    this.drawn = wanted;
    ink.setTransform(scale, 0, 0, scale, 0, 0);
    ink.clearRect(0, 0, main.width, main.height);
    if (!wanted) return;
    const map = this.map.canvas.getBoundingClientRect();
    let left = MOST;
    for (const [seq, table] of state.tables) {
      const chosen = seq === sequence;
      for (let at = 0; at < table.length && left > 0; at++) {
        const strong = chosen || table[at] === block;
        if (!strong && !everybody) continue;
        const from = this.cards.placeOf(seq, at);
        if (!from) continue;
        left -= 1;
        const [x, y] = this.map.port(table[at]);
        this.curve(from[0] - main.left, from[1] - main.top, map.left - main.left + x, map.top - main.top + y,
          palette.owner(seq), strong, sequence !== null || block >= 0);
      }
    }
    ink.globalAlpha = 1;
  }

  curve(x, y, u, v, colour, strong, somebody) {
    const ink = this.ink, bend = (u - x) * 0.45;
    ink.beginPath();
    ink.moveTo(x, y + 5);
    ink.bezierCurveTo(x + bend * 0.6, y + 26, u - bend, v, u, v);
    ink.globalAlpha = strong ? 0.85 : somebody ? 0.14 : 0.42;
    ink.strokeStyle = colour;
    ink.lineWidth = strong ? 2.2 : 1.2;
    ink.stroke();
    ink.beginPath();
    ink.arc(u, v, strong ? 3.4 : 2.4, 0, 7);
    ink.fillStyle = palette.colours.ink;
    ink.globalAlpha *= 0.9;
    ink.fill();
  }
}
