// The last minutes: every update since a key state, so that any moment can be drawn again.
// Bounded by time and by memory; what falls out is gone.

const SECONDS = 300, KEY_SECONDS = 5, MAX_BYTES = 96e6;

export class History {
  constructor() {
    this.parts = []; // {key: PoolState, updates: [], bytes}
    this.points = []; // {t, gauges, counters, events} for the timeline
  }

  add(update, bytes, state) {
    const last = this.parts.at(-1);
    if (!last || update.pool || state.t - last.key.t >= KEY_SECONDS) {
      const key = state.clone();
      this.parts.push({key, updates: [], bytes: key.bytes()});
    } else {
      last.updates.push(update);
      last.bytes += bytes;
    }
    this.points.push({t: state.t, gauges: state.gauges, counters: state.counters, events: update.events ?? []});
    this.forget(state.t);
  }

  forget(now) {
    let bytes = this.parts.reduce((sum, part) => sum + part.bytes, 0);
    while (this.parts.length > 1 && (this.parts[1].key.t < now - SECONDS || bytes > MAX_BYTES)) {
      bytes -= this.parts.shift().bytes;
    }
    const oldest = this.parts[0].key.t;
    let drop = 0;
    while (this.points[drop].t < oldest) drop++;
    if (drop) this.points.splice(0, drop);
  }

  get start() { return this.parts.length ? this.parts[0].key.t : 0; }
  get end() { return this.points.length ? this.points.at(-1).t : 0; }

  // The state at the last update that is not later than t.
  at(t) {
    let part = this.parts[0];
    for (const one of this.parts) if (one.key.t <= t) part = one;
    const state = part.key.clone();
    for (const update of part.updates) {
      if (update.t > t) break;
      state.apply(update);
    }
    return state;
  }

  eventsBefore(t, count) {
    const found = [];
    for (let i = this.points.length - 1; i >= 0 && found.length < count; i--) {
      if (this.points[i].t <= t) found.push(...this.points[i].events.slice().reverse());
    }
    return found.slice(0, count);
  }
}
