// What has just happened, over the map: rings, crosses and arrows that fade; and cursor and selection.
// Each kind has a shape of its own. Without motion (prefers-reduced-motion) they stand still and go.

import {palette} from "./palette.js";

const LASTS = {hit: 1400, evicted: 1100, copy: 2200, fresh: 700, swap_out: 1800, swap_in: 1800};
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Sparks {
  constructor(canvas, map) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.map = map;
    this.live = [];
    this.asked = false;
  }

  add(kind, blocks, to) {
    const now = performance.now();
    for (let i = 0; i < blocks.length && this.live.length < (this.map.pictures ? 400 : 120); i++) {
      this.live.push({kind, block: blocks[i], to: to?.[i], since: now});
    }
    this.wake();
  }

  clear() {
    this.live = [];
    this.wake();
  }

  wake() {
    if (this.asked) return;
    this.asked = true;
    const draw = now => { this.asked = false; this.draw(now); };
    if (this.map.pictures) requestAnimationFrame(draw);
    else setTimeout(() => requestAnimationFrame(draw), 80); // many points: sparks need not be smooth
  }

  draw(now) {
    const ink = this.ink, map = this.map;
    ink.setTransform(map.scale || 1, 0, 0, map.scale || 1, 0, 0);
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    if (map.count < 1) return;
    this.live = this.live.filter(spark => now - spark.since < LASTS[spark.kind] && spark.block < map.count);
    for (const spark of this.live) {
      const part = Math.max(0, (now - spark.since) / LASTS[spark.kind]);
      ink.globalAlpha = still.matches ? 1 : Math.min(1, 2.2 * (1 - part));
      this[spark.kind](spark, still.matches ? 0.5 : part);
    }
    ink.globalAlpha = 1;
    this.outlines();
    if (this.live.length) this.wake();
  }

  stroke(colour, wide, path) {
    const ink = this.ink;
    if (!this.map.pictures) {
      ink.strokeStyle = colour;
      ink.lineWidth = wide;
      ink.beginPath();
      path(ink);
      ink.stroke();
      return;
    }
    ink.lineCap = "round";
    for (const [style, width] of [[palette.colours.glow, wide + 2.5], [colour, wide]]) {
      ink.strokeStyle = style;
      ink.lineWidth = width;
      ink.beginPath();
      path(ink);
      ink.stroke();
    }
  }

  hit(spark, part) {
    const [x, y] = this.map.centre(spark.block), size = Math.max(4, this.map.pitch - this.map.gap);
    const radius = size * (0.36 + 0.22 * Math.sqrt(part)) + (this.map.pictures ? 0 : 3);
    this.stroke(palette.colours.hit, this.map.pictures ? 2.5 : 1.5, ink => ink.arc(x, y, radius, 0, 7));
  }

  evicted(spark, part) {
    const [x, y] = this.map.centre(spark.block), arm = Math.max(4, (this.map.pitch - this.map.gap) * (0.26 + 0.1 * part));
    this.stroke(palette.colours.evicted, this.map.pictures ? 3 : 1.5, ink => {
      ink.moveTo(x - arm, y - arm); ink.lineTo(x + arm, y + arm);
      ink.moveTo(x + arm, y - arm); ink.lineTo(x - arm, y + arm);
    });
  }

  copy(spark, part) {
    const [x, y] = this.map.centre(spark.block), [u, v] = this.map.centre(spark.to);
    const bow = Math.max(14, Math.hypot(u - x, v - y) * 0.25), mx = (x + u) / 2, my = (y + v) / 2 - bow;
    const end = Math.min(1, 0.25 + 1.6 * part), at = t => [
      (1 - t) ** 2 * x + 2 * t * (1 - t) * mx + t * t * u, (1 - t) ** 2 * y + 2 * t * (1 - t) * my + t * t * v];
    this.stroke(palette.colours.copy, 2.5, ink => {
      ink.moveTo(x, y);
      for (let t = 0; t < end; t += 0.05) ink.lineTo(...at(t));
      ink.lineTo(...at(end));
      const [ex, ey] = at(end), [px, py] = at(end - 0.05), angle = Math.atan2(ey - py, ex - px);
      for (const turn of [2.6, -2.6]) {
        ink.moveTo(ex, ey);
        ink.lineTo(ex + 8 * Math.cos(angle + turn), ey + 8 * Math.sin(angle + turn));
      }
    });
  }

  // An arrow out of the block, or into it.
  swap_out(spark, part) { this.swap(spark, part, -1); }
  swap_in(spark, part) { this.swap(spark, part, 1); }
  swap(spark, part, way) {
    const [x, y] = this.map.centre(spark.block), size = Math.max(5, this.map.pitch - this.map.gap);
    const tip = y + way * size * (0.1 + 0.25 * Math.min(1, 2 * part)), tail = tip - way * size * 0.4, head = size * 0.16;
    this.stroke(palette.colours.copy, this.map.pictures ? 2.5 : 1.5, ink => {
      ink.moveTo(x, tail);
      ink.lineTo(x, tip);
      ink.moveTo(x - head, tip - way * head);
      ink.lineTo(x, tip);
      ink.lineTo(x + head, tip - way * head);
    });
  }

  fresh(spark) {
    const [x, y] = this.map.corner(spark.block), size = this.map.pitch - this.map.gap;
    this.stroke(palette.colours.fresh, 1.5, ink => ink.roundRect(x - 1, y - 1, size + 2, size + 2, Math.min(8, size * 0.2)));
  }

  outlines() {
    const map = this.map, size = Math.max(3, map.pitch - map.gap), ink = this.ink;
    const box = (block, grow, colour, wide, dash = []) => {
      if (block < 0 || block >= map.count) return;
      const [x, y] = map.corner(block);
      ink.setLineDash(dash);
      ink.strokeStyle = colour;
      ink.lineWidth = wide;
      ink.strokeRect(x - grow, y - grow, size + 2 * grow, size + 2 * grow);
      ink.setLineDash([]);
    };
    for (const block of map.outlined) box(block, map.pictures ? 1 : 0.5, palette.colours.ink, map.pictures ? 2 : 1);
    box(map.selected, 2, palette.colours.ink, 2.5);
    box(map.cursor, map.pictures ? 3 : 4, palette.colours.hit, 2, [4, 3]);
  }
}
