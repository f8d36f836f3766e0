// Puts the parts together: one stream in, one drawing a frame out, keys and clicks between.

import {PoolState} from "./state.js";
import {History} from "./history.js";
import {Stream} from "./stream.js";
import {PoolMap} from "./map.js";
import {SequenceCards} from "./sequences.js";
import {Curves} from "./curves.js";
import {Timeline} from "./timeline.js";
import {Inspector} from "./inspector.js";
import {Happenings} from "./happenings.js";
import {Tiles} from "./tiles.js";
import {fillKeys, legend} from "./legend.js";
import {palette} from "./palette.js";
import {setText} from "./dom.js";

const at = id => document.getElementById(id);
const THEME = "octavo-theme", INSPECT_MS = 700;

const live = new PoolState(), past = new History();
let view = live; // what is drawn: the live state, or one of the past
let outlined = false, everything = true, asked = false, hovered = null, lastInspected = 0;
const draws = []; // milliseconds that the latest drawings took
const chosen = {sequence: null, block: -1};

const stream = new Stream({update: take, status, askToken});
const inspector = new Inspector(at("inspector"), stream, {pickBlock, pickSequence});
const map = new PoolMap(at("blocks"), at("sparks"), {pick: pickBlock, hover: hoverBlock});
const cards = new SequenceCards(at("cards"), {pick: pickSequence, hover: hoverSequence, pickBlock});
const curves = new Curves(at("curves"), map, cards);
const timeline = new Timeline(at("past"), at("slider"));
const happenings = new Happenings(at("events"), pickSequence);
const tiles = new Tiles(at("tiles"));

function take(update, bytes) {
  live.apply(update);
  past.add(update, bytes, live);
  if (view !== live) { ask(); return; }
  happenings.add(update.missed ? [{kind: "missed", n: update.missed}, ...(update.events ?? [])] : update.events ?? []);
  for (const event of update.events ?? []) spark(event);
  ask();
}

function spark(event) {
  if (["hit", "evicted", "swap_out", "swap_in"].includes(event.kind)) map.sparks.add(event.kind, event.blocks);
  if (event.kind === "copy") map.sparks.add("copy", event.pairs.map(pair => pair[0]), event.pairs.map(pair => pair[1]));
}

function ask(all = false) {
  everything ||= all;
  if (asked) return;
  asked = true;
  requestAnimationFrame(draw);
}
cards.redraw = () => ask();

function draw(now) {
  asked = false;
  const all = everything, started = performance.now();
  everything = false;
  outline();
  map.draw(view, all);
  cards.draw(view, all);
  curves.draw(view, {sequence: hovered ?? chosen.sequence, block: chosen.block});
  timeline.draw(past, view === live ? null : view.t, all ? Infinity : now);
  tiles.draw(view);
  words();
  if (now - lastInspected > INSPECT_MS || all) inspect(now);
  draws.push(performance.now() - started);
  if (draws.length > 1000) draws.splice(0, 500);
}

function words() {
  const {pool, gauges} = view, each = map.perPoint > 1 ? `1 point is ${map.perPoint} blocks` : "1 cell is 1 block";
  setText(at("scale"), pool.blocks ? `${pool.blocks.toLocaleString("en")} blocks of ${pool.block_size} tokens · ${each}` : "");
  setText(at("facts"), pool.model ? `${pool.model} · ${gauges.inFlight} steps in flight` : "");
  at("empty").hidden = pool.blocks > 0;
  setText(at("empty"), "No worker is connected: there is no pool. Requests wait for one.");
  const ago = view === live ? 0 : past.end - view.t;
  setText(at("when"), view === live ? "now" : `${ago.toFixed(1)} s ago`);
  if (view === live) at("slider").value = 1000;
  at("slider").setAttribute("aria-valuetext", at("when").textContent);
}

function outline() {
  const sequence = hovered ?? chosen.sequence;
  map.outlined = sequence !== null ? view.tables.get(sequence) ?? [] : [];
  map.selected = chosen.block;
  cards.selected = chosen.sequence;
  if (map.outlined.length || map.selected >= 0 || outlined) map.sparks.wake();
  outlined = map.outlined.length > 0 || map.selected >= 0;
}

function inspect(now = performance.now()) {
  lastInspected = now;
  if (chosen.block >= view.pool.blocks) chosen.block = -1;
  if (chosen.block >= 0) inspector.block(chosen.block, view, view === live);
  else if (chosen.sequence !== null) inspector.sequence(chosen.sequence, view, view === live);
  else inspector.nothing();
}

function pickBlock(block) { choose(null, block === chosen.block ? -1 : block); }
function pickSequence(seq) { choose(seq === chosen.sequence ? null : seq, -1); }
function choose(sequence, block) {
  Object.assign(chosen, {sequence, block});
  cards.cards.get(sequence)?.root.scrollIntoView({block: "nearest"});
  inspect();
  ask();
}
function hoverSequence(seq) { hovered = seq; ask(); }
function hoverBlock(block) {
  at("blocks").title = block < 0 || !view.pool.blocks ? "" : `block ${block}`;
}

// Time

function goLive() {
  if (view !== live) { view = live; live.touched = null; happenings.reset(past.eventsBefore(past.end, 40)); }
  at("live").setAttribute("aria-pressed", true);
  setText(at("live"), "Live");
  ask(true);
}

function goTo(t) {
  if (!past.points.length) return;
  view = past.at(t);
  map.sparks.clear();
  happenings.reset(past.eventsBefore(view.t, 40));
  at("live").setAttribute("aria-pressed", false);
  setText(at("live"), "Held");
  ask(true);
}

at("slider").addEventListener("input", event => {
  const part = event.target.value / 1000;
  if (part >= 1) goLive(); else goTo(timeline.timeAt(past, part));
});
at("live").addEventListener("click", () => view === live ? goTo(past.end) : goLive());

// Looks

function theme(name) {
  palette.set(name);
  document.documentElement.dataset.theme = name;
  localStorage.setItem(THEME, name);
  legend(at("legend"));
  ask(true);
}
function colourBy(byState) {
  map.byState = cards.byState = byState;
  setText(at("colour"), `Colour: ${byState ? "state" : "owner"}`);
  legend(at("legend"), byState);
  ask(true);
}
function nextLinks() {
  const modes = ["auto", "chosen", "none"];
  curves.mode = modes[(modes.indexOf(curves.mode) + 1) % 3];
  setText(at("links"), `Links: ${curves.mode}`);
  ask();
}
function nextSequence(step) {
  const order = view.order, now = order.indexOf(chosen.sequence);
  if (order.length) choose(order[(now + step + order.length) % order.length] ?? order[0], -1);
}

const keys = {
  c: () => colourBy(!map.byState), l: nextLinks, t: () => theme(palette.name === "dark" ? "light" : "dark"),
  "?": () => at("keys").open ? at("keys").close() : at("keys").showModal(),
  " ": () => at("live").click(), j: () => nextSequence(1), k: () => nextSequence(-1),
  b: () => at("blocks").focus(), Escape: () => choose(null, -1),
};
addEventListener("keydown", event => {
  const busy = event.target.matches("input, button") && event.key === " ";
  if (event.ctrlKey || event.metaKey || event.altKey || busy || event.target.id === "token") return;
  if (at("keys").open && event.key !== "?") return;
  const action = keys[event.key];
  if (action) { event.preventDefault(); action(); }
});
at("colour").addEventListener("click", keys.c);
at("links").addEventListener("click", keys.l);
at("theme").addEventListener("click", keys.t);
at("help").addEventListener("click", keys["?"]);
at("cards").addEventListener("scroll", () => ask(), {passive: true});
new ResizeObserver(() => ask(true)).observe(document.body);

function status(text, good) {
  setText(at("connection"), text);
  at("connection").classList.toggle("good", good);
}
function askToken() {
  return new Promise(done => {
    at("ask").showModal();
    at("ask").addEventListener("close", () => done(at("token").value), {once: true});
  });
}

// For the console, and for tests: what is told, and what is drawn.
window.octavo = {live, history: past, map, draws, get view() { return view; }};

fillKeys(at("keys"));
theme(localStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
colourBy(false);
stream.run();
