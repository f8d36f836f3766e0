// The map of all blocks. Few blocks are drawn as pictures, many as points, in either case only those that
// changed. Sparks, cursor and selection lie on a canvas of their own.

import {ACTIVE, EVICTABLE, FENCED, refsOf, stateOf} from "./state.js";
import {blockOf, drawCell} from "./cell.js";
import {palette, rgb} from "./palette.js";
import {Sparks} from "./sparks.js";

const PICTURE = 9; // pixels of the smallest block drawn as a picture
const LARGEST = 92, MARGIN = 7;

export class PoolMap {
  constructor(canvas, over, {pick, hover}) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.sparks = new Sparks(over, this);
    this.byState = false;
    this.cursor = -1;
    this.selected = -1;
    this.outlined = [];
    this.pick = pick;
    this.count = -1;
    this.columns = 1;
    canvas.addEventListener("click", event => this.choose(this.blockAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("mousemove", event => hover(this.blockAt(event.offsetX, event.offsetY)));
    canvas.addEventListener("mouseleave", () => hover(-1));
    canvas.addEventListener("keydown", event => this.key(event));
    canvas.addEventListener("focus", () => { this.cursor = Math.max(0, this.cursor); this.sparks.wake(); });
    canvas.addEventListener("blur", () => { this.cursor = -1; this.sparks.wake(); });
  }

  choose(block) {
    if (block >= 0) this.pick(block);
  }

  key(event) {
    const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns,
      Home: -this.count, End: this.count}[event.key];
    if (step !== undefined) {
      this.cursor = Math.max(0, Math.min(this.count - 1, this.cursor + step));
      this.sparks.wake();
    } else if (event.key === "Enter") {
      this.choose(this.cursor);
    } else {
      return;
    }
    event.preventDefault();
  }

  // Fits `count` blocks into the room there is; true when the layout changed.
  layout(count) {
    const room = this.canvas.parentElement, wide = room.clientWidth - 2 * MARGIN, high = room.clientHeight - 2 * MARGIN;
    const scale = window.devicePixelRatio || 1, key = [count, wide, high, scale].join();
    if (key === this.key_) return false;
    this.key_ = key;
    this.count = count;
    this.scale = scale;
    for (const canvas of [this.canvas, this.sparks.canvas]) {
      canvas.width = Math.round((wide + 2 * MARGIN) * scale);
      canvas.height = Math.round((high + 2 * MARGIN) * scale);
    }
    let size = Math.min(LARGEST, Math.sqrt(wide * high / Math.max(1, count)));
    const fits = pitch => Math.floor(wide / pitch) * Math.floor(high / pitch) >= count;
    const unit = 1 / scale;
    size = Math.max(unit, size > PICTURE ? Math.floor(size) : Math.floor(size * scale) / scale);
    while (size > unit && !fits(size)) size -= size > PICTURE ? 1 : unit;
    this.pitch = size;
    this.perPoint = fits(size) ? 1 : Math.ceil(count / (Math.floor(wide / size) * Math.floor(high / size)));
    this.columns = Math.max(1, Math.floor(wide / size));
    if (size >= 24 && this.columns > 16) this.columns -= this.columns % 8;
    if (!(Math.ceil(count / this.columns) * size <= high)) this.columns = Math.max(1, Math.floor(wide / size));
    this.left = MARGIN + Math.floor((wide - Math.min(this.columns, count || 1) * size) / 2);
    this.gap = size >= 22 ? 4 : size >= PICTURE ? 2 : 0;
    this.pictures = size >= PICTURE;
    if (!this.pictures) {
      const points = Math.ceil(count / this.perPoint);
      this.points = new OffscreenCanvas(this.columns, Math.max(1, Math.ceil(points / this.columns)));
      this.pointInk = this.points.getContext("2d");
      this.image = this.pointInk.createImageData(this.points.width, this.points.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    return true;
  }

  draw(state, all) {
    const moved = this.layout(state.pool.blocks), whole = all || moved || !state.touched;
    if (this.pictures) this.drawPictures(state, whole); else this.drawPoints(state, whole);
    state.touched = [];
    if (moved) this.sparks.wake();
  }

  drawPictures(state, whole) {
    const ink = this.ink, holders = state.holders(), size = this.pitch - this.gap;
    ink.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    if (whole) ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const one = block => {
      const [x, y] = this.corner(block);
      if (!whole) ink.clearRect(x - 1, y - 1, size + 3, size + 3);
      drawCell(ink, x, y, size, blockOf(state, block, holders), this.scale, this.byState);
    };
    if (whole) {
      for (let block = 0; block < this.count; block++) one(block);
    } else {
      const seen = new Set();
      for (let i = 0; i < state.touched.length; i += 2) {
        for (let block = state.touched[i]; block < state.touched[i + 1]; block++) seen.add(block);
      }
      seen.forEach(one);
    }
  }

  drawPoints(state, whole) {
    const colour = this.pointColours(), group = this.perPoint;
    const one = point => {
      let best = 0, strongest = -1;
      for (let block = point * group; block < Math.min(this.count, (point + 1) * group); block++) {
        const flags = state.flags[block], kind = stateOf(flags);
        const strength = kind === ACTIVE ? (refsOf(flags) > 1 ? 4 : 3) : kind === FENCED ? 2 : kind === EVICTABLE ? 1 : 0;
        if (strength > strongest) [best, strongest] = [block, strength];
      }
      this.pixels[point] = strongest === 3 && !this.byState
        ? colour.owners[(state.owner[best] - 1) % 7] : colour.kinds[strongest];
    };
    const points = Math.ceil(this.count / group);
    if (whole) {
      for (let point = 0; point < points; point++) one(point);
    } else {
      for (let i = 0; i < state.touched.length; i += 2) {
        const last = Math.ceil(state.touched[i + 1] / group);
        for (let point = Math.floor(state.touched[i] / group); point < last; point++) one(point);
      }
    }
    this.pointInk.putImageData(this.image, 0, 0);
    const ink = this.ink, pitch = this.pitch * this.scale;
    ink.setTransform(1, 0, 0, 1, 0, 0);
    ink.imageSmoothingEnabled = false;
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const left = Math.round(this.left * this.scale), top = Math.round(MARGIN * this.scale);
    ink.drawImage(this.points, left, top, this.points.width * pitch, this.points.height * pitch);
  }

  pointColours() {
    if (this.colourKey === palette.name) return this.colours;
    const pack = hex => { const [r, g, b] = rgb(hex); return (255 << 24 | b << 16 | g << 8 | r) >>> 0; };
    const c = palette.colours;
    this.colourKey = palette.name;
    return (this.colours = {
      kinds: [c.free, c.evictable, c.fenced, c.active, c.shared].map(pack),
      owners: Array.from({length: 7}, (_, i) => pack(palette.owner(i))),
    });
  }

  corner(block) {
    const point = Math.floor(block / this.perPoint);
    return [this.left + point % this.columns * this.pitch + this.gap / 2,
      MARGIN + Math.floor(point / this.columns) * this.pitch + this.gap / 2];
  }

  centre(block) {
    const [x, y] = this.corner(block), half = (this.pitch - this.gap) / 2;
    return [x + half, y + half];
  }

  // Where links end: the left edge of a picture, so that they cross no number.
  port(block) {
    const [x, y] = this.corner(block), half = (this.pitch - this.gap) / 2;
    return this.pictures ? [x, y + half] : [x + half, y + half];
  }

  blockAt(x, y) {
    const column = Math.floor((x - this.left) / this.pitch), row = Math.floor((y - MARGIN) / this.pitch);
    if (column >= this.columns || column < 0 || row < 0) return -1;
    const block = (row * this.columns + column) * this.perPoint;
    return block < this.count ? block : -1;
  }
}
