// Colours, letters and patterns. Owners have the seven hues of Okabe and Ito, which people with any colour
// vision tell apart, and a letter each; states differ in lightness and pattern too, never in hue alone.

const HUES = {
  light: ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d9c52b", "#d55e00", "#4a7fb5"],
  dark: ["#56b4e9", "#e69f00", "#1fb589", "#d88ab5", "#f0e442", "#e8742a", "#7aa6d8"],
};
const THEMES = {
  light: {ink: "#1b2330", quiet: "#69758a", paper: "#ffffff", free: "#f1efe9", freeLine: "#dedacf",
    evictable: "#c3c9d3", hatch: "#8d97a8", active: "#3b76b8", shared: "#123458", fenced: "#7b2d5b",
    hit: "#00795a", evicted: "#b3401a", copy: "#5a3d9a", fresh: "#1b2330", glow: "#ffffff"},
  dark: {ink: "#e9edf4", quiet: "#93a0b5", paper: "#171c25", free: "#1e2530", freeLine: "#323c4b",
    evictable: "#4a5566", hatch: "#7f8ca1", active: "#4d94dd", shared: "#d6e8ff", fenced: "#e07fb5",
    hit: "#3fe0b0", evicted: "#ff8a5c", copy: "#b9a3ff", fresh: "#ffffff", glow: "#0b0e13"},
};

export const palette = {
  name: "light",
  colours: THEMES.light,
  set(name) {
    this.name = name;
    this.colours = THEMES[name];
    this.patterns = null;
  },
  owner(seq) { return HUES[this.name][seq % 7]; },
};

// A, B, ... Z, A1, B1, ...: short, and the same whoever looks.
export function letterOf(seq) {
  const number = Math.max(0, seq - 1), round = Math.floor(number / 26);
  return String.fromCharCode(65 + number % 26) + (round ? round % 10 : "");
}

export function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// A diagonal hatch, for what is findable but held by nobody.
export function hatch(context, scale) {
  const colours = palette.colours;
  if (palette.patterns?.scale === scale) return palette.patterns.hatch;
  const size = 6 * scale, tile = new OffscreenCanvas(size, size), ink = tile.getContext("2d");
  ink.fillStyle = colours.evictable;
  ink.globalAlpha = 0.55;
  ink.fillRect(0, 0, size, size);
  ink.globalAlpha = 1;
  ink.strokeStyle = colours.hatch;
  ink.lineWidth = 1.1 * scale;
  ink.beginPath();
  for (const shift of [-size, 0, size]) {
    ink.moveTo(shift - 1, size + 1);
    ink.lineTo(shift + size + 1, -1);
  }
  ink.stroke();
  palette.patterns = {scale, hatch: context.createPattern(tile, "repeat")};
  return palette.patterns.hatch;
}
