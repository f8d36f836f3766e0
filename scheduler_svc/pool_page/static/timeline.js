// The last minutes as stacked states, with marks for what happened, and the slider over them.

import {palette} from "./palette.js";

const MARKS = [["hit", 0], ["copy", 1], ["evicted", 2], ["preempted", 3]];
const SHOWN_SECONDS = 300, LEAST_SECONDS = 30;

export class Timeline {
  constructor(canvas, slider) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d");
    this.slider = slider;
    this.drawnAt = -1e9;
  }

  range(history) {
    const end = history.end, span = Math.max(LEAST_SECONDS, Math.min(SHOWN_SECONDS, end - history.start));
    return [end - span, end];
  }

  timeAt(history, part) {
    const [start, end] = this.range(history);
    return Math.max(history.start, start + part * (end - start));
  }

  // At most twice a second, unless the moment shown is another.
  draw(history, at, now) {
    if (at === this.shownAt && now - this.drawnAt < 500) return;
    this.shownAt = at;
    this.drawnAt = now === Infinity ? -1e9 : now;
    const {canvas, ink} = this, scale = window.devicePixelRatio || 1;
    const wide = canvas.clientWidth, high = canvas.clientHeight;
    if (!wide || !history.points.length) return;
    if (canvas.width !== Math.round(wide * scale) || canvas.height !== Math.round(high * scale)) {
      canvas.width = Math.round(wide * scale);
      canvas.height = Math.round(high * scale);
    }
    ink.setTransform(scale, 0, 0, scale, 0, 0);
    ink.clearRect(0, 0, wide, high);
    const [start, end] = this.range(history), x = t => (t - start) / (end - start) * wide;
    const foot = 33, colours = palette.colours;
    // One column a pixel: the last point that falls into it stands for it.
    const columns = [];
    for (const point of history.points) columns[Math.max(0, Math.min(wide - 1, Math.floor(x(point.t))))] = point;
    const bands = [
      [colours.shared, gauges => gauges.shared],
      [colours.active, gauges => gauges.active - gauges.shared],
      [colours.fenced, gauges => gauges.fenced],
      [colours.evictable, gauges => gauges.evictable],
    ];
    let last = null;
    ink.fillStyle = colours.free;
    ink.fillRect(x(history.start), 0, wide, high - foot);
    for (let column = 0; column < wide; column++) {
      last = columns[column] ?? last;
      if (!last || column < x(history.start) - 1) continue;
      const total = Math.max(1, last.gauges.free + last.gauges.evictable + last.gauges.active + last.gauges.fenced);
      let y = high - foot;
      for (const [colour, part] of bands) {
        const tall = Math.max(0, part(last.gauges)) / total * (high - foot);
        ink.fillStyle = colour;
        ink.fillRect(column, y - tall, 1, tall);
        y -= tall;
      }
    }
    this.marks(history, x, high - foot);
    this.words(start, end, x, high, at);
  }

  marks(history, x, top) {
    const ink = this.ink, colours = palette.colours, shade = {hit: colours.hit, copy: colours.copy, evicted: colours.evicted, preempted: colours.ink};
    const used = new Set();
    for (const point of history.points) {
      for (const event of point.events) {
        const lane = MARKS.findIndex(([kind]) => kind === event.kind);
        if (lane < 0) continue;
        const left = Math.round(x(point.t)), key = `${lane}:${left >> 1}`;
        if (used.has(key)) continue;
        used.add(key);
        ink.fillStyle = ink.strokeStyle = shade[event.kind];
        mark(ink, event.kind, left, top + 3 + lane * 4.5);
      }
    }
  }

  words(start, end, x, high, at) {
    const ink = this.ink;
    ink.font = "11px system-ui, sans-serif";
    ink.textBaseline = "bottom";
    ink.fillStyle = palette.colours.quiet;
    for (let ago = step(end - start); ago < end - start; ago += step(end - start)) {
      const text = ago >= 60 ? `${ago / 60} min ago` : `${ago} s ago`;
      ink.fillRect(Math.round(x(end - ago)), high - 13, 1, 12);
      ink.fillText(text, x(end - ago) + 4, high - 1);
    }
    ink.strokeStyle = palette.colours.ink;
    ink.lineWidth = 2;
    const place = Math.max(1, Math.min(this.canvas.clientWidth - 1, x(at ?? end)));
    ink.beginPath();
    ink.moveTo(place, 0);
    ink.lineTo(place, high);
    ink.stroke();
  }
}

function step(span) { return span > 150 ? 60 : span > 60 ? 30 : 10; }

function mark(ink, kind, x, y) {
  ink.beginPath();
  if (kind === "hit") ink.arc(x, y, 1.7, 0, 7);
  else if (kind === "preempted") { ink.moveTo(x - 2.6, y + 2); ink.lineTo(x + 2.6, y + 2); ink.lineTo(x, y - 2.4); ink.closePath(); }
  else ink.rect(x - 1.5, y - 1.5, 3, 3);
  ink.fill();
}
