// One block as a picture, the same in the map and in a block table. Knows no layout.

import {ACTIVE, EVICTABLE, FENCED, isFindable, refsOf, stateOf} from "./state.js";
import {hatch, letterOf, palette} from "./palette.js";

const ON_HUE = "#10202f";
const BANDS = 4;

// block: {flags, fill, owner, holders, blockSize, label}; size in pixels of the screen.
export function drawCell(ink, x, y, size, block, scale, byState) {
  const state = stateOf(block.flags), refs = refsOf(block.flags), colours = palette.colours;
  const radius = Math.min(7, size * 0.18);
  ink.beginPath();
  ink.roundRect(x, y, size, size, radius);
  if (state === ACTIVE) {
    active(ink, x, y, size, block, refs, byState);
  } else {
    ink.fillStyle = state === EVICTABLE ? hatch(ink, scale) : state === FENCED ? colours.fenced : colours.free;
    ink.fill();
    ink.lineWidth = 1;
    ink.strokeStyle = state === EVICTABLE ? colours.hatch : colours.freeLine;
    ink.stroke();
    if (state === FENCED) cross(ink, x, y, size);
  }
  if (size >= 18) words(ink, x, y, size, block, state, refs);
}

function active(ink, x, y, size, block, refs, byState) {
  const colours = palette.colours, holders = block.holders?.length ? block.holders : [block.owner - 1];
  ink.save();
  ink.clip();
  const hues = byState ? [refs > 1 ? colours.shared : colours.active]
    : [...new Set(holders.slice(0, BANDS).map(seq => palette.owner(seq)))];
  hues.forEach((hue, i) => {
    const left = x + size * i / hues.length, wide = size / hues.length + 0.5;
    const high = size * Math.min(1, block.fill / (block.blockSize || 1));
    ink.fillStyle = hue;
    ink.globalAlpha = 0.26;
    ink.fillRect(left, y, wide, size);
    ink.globalAlpha = 1;
    ink.fillRect(left, y + size - high, wide, high);
  });
  ink.restore();
  ink.lineWidth = refs > 1 ? Math.max(1.5, size * 0.07) : 1;
  ink.strokeStyle = refs > 1 ? colours.ink : "rgb(16 32 47 / 45%)";
  const inset = ink.lineWidth / 2 - 0.5;
  ink.beginPath();
  ink.roundRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset, Math.min(7, size * 0.18));
  ink.stroke();
}

function cross(ink, x, y, size) {
  ink.strokeStyle = palette.colours.paper;
  ink.lineWidth = Math.max(1, size * 0.07);
  ink.beginPath();
  ink.moveTo(x + size * 0.25, y + size * 0.25);
  ink.lineTo(x + size * 0.75, y + size * 0.75);
  ink.moveTo(x + size * 0.75, y + size * 0.25);
  ink.lineTo(x + size * 0.25, y + size * 0.75);
  ink.stroke();
}

function words(ink, x, y, size, block, state, refs) {
  const colours = palette.colours, large = size >= 30;
  const text = Math.max(8, Math.min(15, size * (large ? 0.3 : 0.42)));
  ink.font = `600 ${text}px ui-monospace, "DejaVu Sans Mono", Menlo, monospace`;
  ink.textAlign = "left";
  ink.textBaseline = "top";
  const onHue = state === ACTIVE && block.fill > 0.6 * block.blockSize;
  if (state === EVICTABLE) {
    const wide = ink.measureText(block.label).width;
    ink.fillStyle = colours.paper;
    ink.globalAlpha = 0.8;
    ink.fillRect(x + size * 0.08, y + size * 0.08, wide + 3, text + 1);
    ink.globalAlpha = 1;
  }
  ink.fillStyle = onHue ? ON_HUE : state === FENCED ? colours.paper : state === ACTIVE ? colours.ink : colours.quiet;
  if (!large) {
    ink.textAlign = "center";
    ink.textBaseline = "middle";
    if (refs > 1) halo(ink, block.label, x + size / 2, y + size / 2 + 0.5);
    ink.fillText(block.label, x + size / 2, y + size / 2 + 0.5);
    return;
  }
  if (refs > 1) halo(ink, block.label, x + size * 0.11, y + size * 0.11);
  ink.fillText(block.label, x + size * 0.11, y + size * 0.11);
  if (state !== ACTIVE) return;
  ink.fillStyle = ON_HUE;
  ink.textBaseline = "bottom";
  ink.textAlign = "right";
  const tag = refs > 1 ? `×${refs}` : letterOf(block.owner - 1);
  if (block.fill < 0.35 * block.blockSize) ink.fillStyle = colours.ink;
  if (refs > 1) halo(ink, tag, x + size * 0.9, y + size * 0.92);
  ink.fillText(tag, x + size * 0.9, y + size * 0.92);
  if (isFindable(block.flags)) {
    ink.fillStyle = onHue ? ON_HUE : colours.ink;
    ink.beginPath();
    ink.arc(x + size * 0.84, y + size * 0.2, Math.max(1.6, size * 0.055), 0, 7);
    ink.fill();
  }
}

// Keeps words readable over bands of several hues.
function halo(ink, text, x, y) {
  ink.strokeStyle = "rgb(255 255 255 / 78%)";
  ink.lineWidth = 3.5;
  ink.lineJoin = "round";
  ink.strokeText(text, x, y);
  ink.fillStyle = ON_HUE;
}

// The same for a block too small for shapes: a rectangle, one hue, filled as far as it holds tokens.
export function drawSpot(ink, x, y, size, block, byState) {
  const state = stateOf(block.flags), colours = palette.colours, shared = refsOf(block.flags) > 1;
  if (state !== ACTIVE) {
    ink.fillStyle = state === EVICTABLE ? colours.evictable : state === FENCED ? colours.fenced : colours.free;
    ink.fillRect(x, y, size, size);
    return;
  }
  ink.fillStyle = shared ? colours.shared : byState ? colours.active : palette.owner(block.owner - 1);
  const high = Math.max(1, Math.round(size * Math.min(1, block.fill / (block.blockSize || 1))));
  ink.fillRect(x, y + size - high, size, high);
  if (high < size) {
    ink.globalAlpha = 0.3;
    ink.fillRect(x, y, size, size - high);
    ink.globalAlpha = 1;
  }
}

export function blockOf(state, block, holders) {
  return {
    flags: state.flags[block], fill: state.fill[block], owner: state.owner[block],
    holders: holders?.get(block), blockSize: state.pool.block_size, label: String(block),
  };
}
