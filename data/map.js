/* map.js - the hold as a picture: every tensor of a plan is a rectangle, its addresses by the time it lives. The pages of plan --html and
 * watch --web share it.
 *
 *     const map = new Hold.Map(element);    // puts its controls and canvas into the element
 *     map.show(snapshot);                   // in the format of docs/watching.md, "plimsoll-snapshot"; again after a re-plan
 *
 * What does not change with the pointer is drawn once, into `base`; moving the pointer copies that and draws cursor and name over it.
 * The view is a window of the unit square: x over the step, y over the tier's bytes. */
'use strict';
const Hold = (() => {
  const CLASSES = { param: ['parameters', '#3b6fb6'], master: ['master bits', '#67b7c9'], grad: ['gradients', '#b65fa5'], state: ['optimizer state', '#d9a441'],
    act: ['activations', '#5aa469'], work: ['scratch and staging', '#9a9a9a'], kv: ['keys and values', '#7cc48b'], io: ['tokens and scalars', '#8583b0'], overhead: ['overhead', '#7b8794'] };
  const STYLE = `
.map-bar { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin: 0 0 .6rem; }
.map-bar button { font: inherit; font-size: .85rem; padding: .3rem .7rem; min-height: 2.2rem; min-width: 2.2rem; border: 1px solid var(--line); border-radius: .4rem; background: none; color: var(--accent); cursor: pointer; }
.map-bar button[aria-pressed=true] { background: var(--accent); color: var(--on); border-color: var(--accent); }
.map-bar input { font: inherit; font-size: .85rem; padding: .3rem .6rem; min-height: 2.2rem; width: 11rem; max-width: 100%; border: 1px solid var(--line); border-radius: .4rem; background: var(--paper); color: inherit; }
.map-bar .gap { flex: 1; } .map-tiers { display: flex; flex-wrap: wrap; gap: .4rem; }
.map-box { position: relative; }
.map-box canvas { display: block; width: 100%; height: 26rem; cursor: crosshair; touch-action: pan-y; border-radius: .4rem; }
.map-tip { position: absolute; pointer-events: none; z-index: 1; max-width: min(26rem, 90%); padding: .4rem .6rem; border-radius: .4rem; background: var(--ink); color: var(--paper); font-size: .8rem; line-height: 1.4; overflow-wrap: anywhere; box-shadow: 0 2px 10px #0004; }
.map-tip[hidden] { display: none; } .map-tip b { display: block; }
.map-at { min-height: 1.5em; margin: .4rem 0 0; font-size: .85rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.key { margin: .5rem 0 0; } .key span, .key button { margin: 0 .9rem 0 0; white-space: nowrap; font: inherit; font-size: .85rem; } .key button { border: 0; padding: .2rem 0; background: none; color: inherit; cursor: pointer; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; vertical-align: -.05em; } .key .off { opacity: .35; }
@media (max-width: 48rem) { .map-box canvas { height: 20rem; } }`;
  const CLOSEST = 1e-5, LEFT = 74, RIGHT = 10, TOP = 10, BOTTOM = 26;

  const bytes = n => { const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB']; let i = 0; while (n >= 1024 && i < 4) { n /= 1024; i++; } return (i ? n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0) : Math.round(n)) + ' ' + u[i]; };
  const seconds = us => us < 1e3 ? us.toFixed(0) + ' µs' : us < 1e6 ? (us / 1e3).toFixed(us < 1e4 ? 2 : 1) + ' ms' : (us / 1e6).toFixed(2) + ' s';
  const word = name => (CLASSES[name] || [name])[0];
  const colour = name => (CLASSES[name] || [0, '#6e7f91'])[1];
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, more, ...inside) => { const e = Object.assign(document.createElement(tag), more); e.append(...inside); return e; };
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  /* A canvas as large as it is shown, in the screen's own pixels. */
  function fit(canvas, W, H) {
    const d = devicePixelRatio || 1, g = canvas.getContext('2d');
    if (canvas.width !== Math.round(W * d) || canvas.height !== Math.round(H * d)) { canvas.width = Math.round(W * d); canvas.height = Math.round(H * d); }
    g.setTransform(d, 0, 0, d, 0, 0);
    g.clearRect(0, 0, W, H);
    return g;
  }

  /* A key of classes: name, colour, bytes. */
  function key(element, rows, press) {
    element.replaceChildren(...rows.map(([name, n]) => {
      const mark = make('i'); mark.style.background = colour(name);
      return make(press ? 'button' : 'span', press ? { type: 'button', onclick: e => press(name, e.currentTarget) } : {}, mark, word(name) + (n === undefined ? '' : ' ' + bytes(n)));
    }));
  }

  class Map {
    constructor(root) {
      if (!document.getElementById('map-style')) document.head.append(make('style', { id: 'map-style', textContent: STYLE }));
      this.root = root; this.tier = 0; this.byTime = false; this.off = new Set(); this.find = ''; this.hot = -1; this.pointer = null; this.fingers = new globalThis.Map();
      this.view = { x0: 0, x1: 1, y0: 0, y1: 1 };
      this.tiers = make('span', { className: 'map-tiers' });
      this.time = make('button', { type: 'button', textContent: 'by time', title: 'Width as long as an op takes, or all ops alike', onclick: () => { this.byTime = !this.byTime; this.reset(); } });
      this.search = make('input', { type: 'search', placeholder: 'find a tensor', title: 'Enter zooms in on it', ariaLabel: 'Find a tensor by name', oninput: e => { this.find = e.target.value.toLowerCase(); this.paint(); },
        onkeydown: e => { if (e.key === 'Enter' && this.find && this.snapshot) this.seek(this.find); } });
      const button = (text, title, act) => make('button', { type: 'button', textContent: text, title, ariaLabel: title, onclick: act });
      this.canvas = make('canvas', { tabIndex: 0 }); this.canvas.setAttribute('role', 'img');
      this.tip = make('div', { className: 'map-tip', hidden: true }); this.at = make('p', { className: 'map-at' }); this.key = make('p', { className: 'key' });
      root.replaceChildren(make('div', { className: 'map-bar' }, this.tiers, this.time, this.search, make('span', { className: 'gap' }), button('–', 'Zoom out', () => this.zoom(2)),
        button('+', 'Zoom in', () => this.zoom(.5)), button('fit', 'Show all of it', () => this.reset())), make('div', { className: 'map-box' }, this.canvas, this.tip), this.at, this.key);
      this.base = document.createElement('canvas');
      this.listen();
    }

    /* --- what is shown ---------------------------------------------------------------------------------------------- */

    show(snapshot) {
      const s = this.snapshot = snapshot;
      this.used = s.tiers.map((_, t) => s.tensors.some(x => x.tier === t));
      if (!this.used[this.tier]) this.tier = Math.max(this.used.indexOf(true), 0);
      const timed = s.ops.length > 0 && s.ops.every(o => o.start_us >= 0);
      this.time.hidden = !timed; this.byTime = this.byTime && timed;
      this.tiers.replaceChildren(...s.tiers.flatMap((tier, t) => this.used[t] ? [make('button', { type: 'button', textContent: `${tier.name} ${bytes(tier.bytes)}`, onclick: () => { this.tier = t; this.reset(); } })] : []));
      this.numbers = s.tiers.flatMap((_, t) => this.used[t] ? [t] : []);
      this.reset();
    }

    /* Rectangles of the tier, live bytes by op, and the line of the budget. */
    measure() {
      const s = this.snapshot, n = Math.max(s.ops.length, 1), change = new Float64Array(n + 1);
      this.list = s.tensors.filter(x => x.tier === this.tier && x.last >= x.first);
      for (const x of this.list) { change[clamp(x.first, 0, n)] += x.bytes; change[clamp(x.last + 1, 0, n)] -= x.bytes; }
      this.live = []; let sum = 0; this.peak = 0;
      for (let i = 0; i < n; i++) { this.live.push(sum += change[i]); if (sum > this.live[this.peak]) this.peak = i; }
      if (this.tier === 0 && s.peak_op >= 0 && s.peak_op < n) this.peak = s.peak_op;
      this.bytes = Math.max(s.tiers[this.tier].bytes, 1, ...[this.list.reduce((m, x) => Math.max(m, x.offset + x.bytes), 0)]);
      this.line = this.tier === 0 && s.budget > 0 ? s.tiers[0].bytes + s.budget - s.total : 0;
      if (this.line > 0 && this.line < 1.3 * this.bytes) this.bytes = Math.max(this.bytes, this.line); else this.line = 0;
      this.bytes *= 1.02;
      const last = s.ops.length - 1;
      this.begin = i => this.byTime ? s.ops[clamp(i, 0, last)].start_us : i;
      this.end = i => this.byTime ? s.ops[clamp(i, 0, last)].start_us + s.ops[clamp(i, 0, last)].us : i + 1;
      this.span = this.byTime ? Math.max(1e-9, ...[s.ops.reduce((m, o) => Math.max(m, o.start_us + o.us), 0)]) : n;
      const sums = s.classes.map((name, c) => [name, this.list.reduce((m, x) => x.class === c && x.first <= this.peak && x.last >= this.peak ? m + x.bytes : m, 0), c]).filter(r => this.list.some(x => x.class === r[2]));
      key(this.key, sums, (name, row) => { const c = s.classes.indexOf(name); if (!this.off.delete(c)) this.off.add(c); row.classList.toggle('off', this.off.has(c)); this.paint(); });
      this.key.title = 'Bytes that are alive at the peak. Press to hide.';
      this.canvas.setAttribute('aria-label', `${this.list.length} tensors of ${s.tiers[this.tier].name}, ${bytes(s.tiers[this.tier].bytes)}, over ${s.ops.length} ops`);
      [...this.tiers.children].forEach((b, i) => b.setAttribute('aria-pressed', this.numbers[i] === this.tier));
      this.time.setAttribute('aria-pressed', this.byTime);
    }

    reset() { if (!this.snapshot) return; this.view = { x0: 0, x1: 1, y0: 0, y1: 1 }; this.hot = -1; this.off.clear(); this.measure(); this.touch(); this.paint(); }

    /* --- places ------------------------------------------------------------------------------------------------------ */

    X(t) { const v = this.view; return LEFT + (t / this.span - v.x0) / (v.x1 - v.x0) * (this.W - LEFT - RIGHT); }
    Y(a) { const v = this.view; return this.H - BOTTOM - (a / this.bytes - v.y0) / (v.y1 - v.y0) * (this.H - TOP - BOTTOM); }
    timeAt(x) { const v = this.view; return (v.x0 + (x - LEFT) / (this.W - LEFT - RIGHT) * (v.x1 - v.x0)) * this.span; }
    addressAt(y) { const v = this.view; return (v.y0 + (this.H - BOTTOM - y) / (this.H - TOP - BOTTOM) * (v.y1 - v.y0)) * this.bytes; }
    opAt(t) { if (!this.byTime) return clamp(Math.floor(t), 0, this.live.length - 1); let best = 0; this.snapshot.ops.forEach((o, i) => { if (o.start_us <= t && o.start_us >= this.snapshot.ops[best].start_us) best = i; }); return best; }
    box(r) { const x = this.X(this.begin(r.first)), y = this.Y(r.offset + r.bytes); return [x, y, Math.max(this.X(this.end(r.last)) - x, .6), Math.max(this.Y(r.offset) - y, .4)]; }
    /* The middle of a tensor's rectangle on the screen, where it is in view. */
    middle(name) { const r = this.list.find(x => x.name === name), b = r && this.box(r), c = this.canvas.getBoundingClientRect(); return b && [c.left + clamp(b[0] + b[2] / 2, LEFT, this.W - RIGHT - 1), c.top + clamp(b[1] + b[3] / 2, TOP, this.H - BOTTOM - 1)]; }

    /* --- drawing ----------------------------------------------------------------------------------------------------- */

    paint() {
      if (!this.snapshot || !this.canvas.clientWidth) return;
      this.W = this.canvas.clientWidth; this.H = this.canvas.clientHeight;
      const g = fit(this.base, this.W, this.H), edge = css('--card'), names = s => !this.find || s.name.toLowerCase().includes(this.find);
      g.save(); g.beginPath(); g.rect(LEFT, TOP, this.W - LEFT - RIGHT, this.H - TOP - BOTTOM); g.clip();
      for (const r of this.list) {
        const [x, y, w, h] = this.box(r);
        if (x + w < LEFT || x > this.W - RIGHT || y + h < TOP || y > this.H - BOTTOM || this.off.has(r.class)) continue;
        g.globalAlpha = names(r) ? .88 : .14; g.fillStyle = colour(this.snapshot.classes[r.class]); g.fillRect(x, y, w, h);
        if (w > 3 && h > 3) { g.globalAlpha = .5; g.strokeStyle = edge; g.lineWidth = 1; g.strokeRect(x + .5, y + .5, w - 1, h - 1); }
        if (w > 90 && h > 15) this.write(g, r, x, y, w, h);
      }
      g.globalAlpha = 1; g.setLineDash([5, 4]); g.strokeStyle = css('--bad');
      const p = (this.X(this.begin(this.peak)) + this.X(this.end(this.peak))) / 2;
      g.beginPath(); g.moveTo(p, TOP); g.lineTo(p, this.H - BOTTOM); g.stroke(); g.setLineDash([]);
      if (this.line) { g.lineWidth = 2; g.strokeStyle = css('--ink'); g.beginPath(); g.moveTo(LEFT, this.Y(this.line)); g.lineTo(this.W, this.Y(this.line)); g.stroke(); g.fillStyle = css('--ink'); g.font = '11px system-ui, sans-serif'; g.textAlign = 'right'; g.fillText('budget', this.W - RIGHT - 4, this.Y(this.line) + 13); }
      g.restore();
      this.axes(g); this.over();
    }

    write(g, r, x, y, w, h) {
      const left = Math.max(x, LEFT), room = Math.min(x + w, this.W - RIGHT) - left - 8;
      g.font = '11px system-ui, sans-serif'; g.textAlign = 'left'; g.globalAlpha = .95; g.fillStyle = '#fff';
      let text = r.name; const n = Math.floor(room / 6.2); if (text.length > n) text = n > 4 ? '…' + text.slice(1 - n) : '';
      g.fillText(text, left + 4, y + h / 2 + 4);
    }

    axes(g) {
      const soft = css('--soft'), n = 5, across = this.W < 500 ? 4 : 8, v = this.view;
      g.fillStyle = soft; g.font = '12px system-ui, sans-serif'; g.textAlign = 'right'; g.globalAlpha = 1;
      for (let i = 0; i <= n; i++) { const y = this.H - BOTTOM - (this.H - TOP - BOTTOM) * i / n; g.fillText(bytes(this.addressAt(y)), LEFT - 8, clamp(y + 4, 12, this.H - BOTTOM)); }
      for (let i = 0; i <= across; i++) {
        const t = (v.x0 + (v.x1 - v.x0) * i / across) * this.span;
        g.textAlign = i === 0 ? 'left' : i === across ? 'right' : 'center'; g.fillText(this.byTime ? seconds(t) : (i === 0 ? 'op ' : '') + Math.round(t), LEFT + (this.W - LEFT - RIGHT) * i / across, this.H - 8);
      }
      g.strokeStyle = css('--line'); g.lineWidth = 1; g.strokeRect(LEFT - .5, TOP - .5, this.W - LEFT - RIGHT + 1, this.H - TOP - BOTTOM + 1);
    }

    /* Cursor and the tensor under it. */
    over() {
      const g = fit(this.canvas, this.W, this.H), p = this.pointer, s = this.snapshot;
      g.drawImage(this.base, 0, 0, this.W, this.H);
      const inside = p && p[0] >= LEFT && p[0] <= this.W - RIGHT && p[1] >= TOP && p[1] <= this.H - BOTTOM;
      this.hot = inside ? this.under(p[0], p[1]) : -1;
      const r = this.list[this.hot];
      if (r) { const [x, y, w, h] = this.box(r); g.save(); g.beginPath(); g.rect(LEFT, TOP, this.W - LEFT - RIGHT, this.H - TOP - BOTTOM); g.clip(); g.strokeStyle = css('--ink'); g.lineWidth = 2; g.strokeRect(x, y, w, h); g.restore(); }
      if (inside) { g.strokeStyle = css('--soft'); g.globalAlpha = .6; g.lineWidth = 1; g.beginPath(); g.moveTo(p[0] + .5, TOP); g.lineTo(p[0] + .5, this.H - BOTTOM); g.moveTo(LEFT, p[1] + .5); g.lineTo(this.W - RIGHT, p[1] + .5); g.stroke(); g.globalAlpha = 1; }
      const op = inside ? this.opAt(this.timeAt(p[0])) : this.peak, o = s.ops[op];
      this.at.textContent = `${inside ? 'at' : 'peak at'} op ${op + 1} of ${s.ops.length}${o ? ' (' + o.name + ')' : ''}: ${bytes(this.live[op])} alive` + (inside ? `, address ${bytes(Math.max(this.addressAt(p[1]), 0))}` : '');
      this.tip.hidden = !r; if (r) this.tell(r, p);
    }

    tell(r, p) {
      const s = this.snapshot, name = i => s.ops[i] ? ` ${s.ops[i].kind || s.ops[i].name}` : '', whole = r.first <= 0 && r.last >= s.ops.length - 1;
      this.tip.replaceChildren(make('b', { textContent: r.name }), `${word(s.classes[r.class])}, ${bytes(r.bytes)} at ${bytes(r.offset)}`, make('br'), whole ? 'kept throughout' : `op ${r.first + 1}${name(r.first)} to ${r.last + 1}${name(r.last)}`);
      const w = this.tip.offsetWidth, h = this.tip.offsetHeight;
      this.tip.style.left = clamp(p[0] + 14 + w > this.W ? p[0] - w - 14 : p[0] + 14, 0, Math.max(this.W - w, 0)) + 'px';
      this.tip.style.top = clamp(p[1] + 14 + h > this.H ? p[1] - h - 14 : p[1] + 14, 0, Math.max(this.H - h, 0)) + 'px';
    }

    /* What is under a place, or within a pixel of it where nothing is. */
    under(px, py) {
      let near = -1;
      for (let i = this.list.length - 1; i >= 0; i--) {
        const [x, y, w, h] = this.box(this.list[i]);
        if (this.off.has(this.list[i].class) || px < x - 1 || px > x + w + 1 || py < y - 1 || py > y + h + 1) continue;
        if (px >= x && px <= x + w && py >= y && py <= y + h) return i;
        near = i;
      }
      return near;
    }

    /* --- moving the view --------------------------------------------------------------------------------------------- */

    zoom(factor, px = (LEFT + this.W - RIGHT) / 2, py = (TOP + this.H - BOTTOM) / 2) {
      const v = this.view, fx = (px - LEFT) / (this.W - LEFT - RIGHT), fy = (this.H - BOTTOM - py) / (this.H - TOP - BOTTOM);
      const w = clamp((v.x1 - v.x0) * factor, CLOSEST, 1), h = clamp((v.y1 - v.y0) * factor, CLOSEST, 1);
      const x0 = v.x0 + fx * (v.x1 - v.x0 - w), y0 = v.y0 + fy * (v.y1 - v.y0 - h);
      this.look(x0, y0, w, h);
    }
    /* The first tensor whose name has the text in it, with its neighbours around it. */
    seek(text) {
      const r = this.list.find(x => x.name.toLowerCase().includes(text.toLowerCase()));
      if (!r) return false;
      const x0 = this.begin(r.first) / this.span, w = Math.max(this.end(r.last) / this.span - x0, CLOSEST), y0 = r.offset / this.bytes, h = Math.max(r.bytes / this.bytes, CLOSEST);
      this.look(x0 - w, y0 - 2 * h, Math.min(3 * w, 1), Math.min(5 * h, 1));
      return true;
    }
    look(x0, y0, w, h) { x0 = clamp(x0, 0, 1 - w); y0 = clamp(y0, 0, 1 - h); this.view = { x0, x1: x0 + w, y0, y1: y0 + h }; this.touch(); this.paint(); }
    move(dx, dy) { const v = this.view, w = v.x1 - v.x0, h = v.y1 - v.y0; this.look(v.x0 - dx / (this.W - LEFT - RIGHT) * w, v.y0 + dy / (this.H - TOP - BOTTOM) * h, w, h); }
    get zoomed() { return this.view.x1 - this.view.x0 < 1 || this.view.y1 - this.view.y0 < 1; }
    touch() { this.canvas.style.touchAction = this.zoomed ? 'none' : 'pan-y'; } /* a finger scrolls the page until there is something to move */

    listen() {
      const c = this.canvas, fingers = this.fingers, place = e => { const b = c.getBoundingClientRect(); return [e.clientX - b.left, e.clientY - b.top]; };
      const redraw = () => { if (this.snapshot && this.W) this.over(); };
      c.onpointerdown = e => { fingers.set(e.pointerId, place(e)); if (this.zoomed) c.setPointerCapture(e.pointerId); this.pointer = place(e); redraw(); };
      c.onpointermove = e => {
        const before = fingers.get(e.pointerId), now = place(e);
        this.pointer = now;
        if (!before || !this.snapshot) return redraw();
        const other = [...fingers].find(([id]) => id !== e.pointerId);
        fingers.set(e.pointerId, now);
        if (!other) return this.zoomed ? this.move(now[0] - before[0], now[1] - before[1]) : redraw();
        const d = p => Math.hypot(p[0] - other[1][0], p[1] - other[1][1]) || 1;
        this.zoom(d(before) / d(now), (now[0] + other[1][0]) / 2, (now[1] + other[1][1]) / 2);
      };
      c.onpointerup = c.onpointercancel = e => { fingers.delete(e.pointerId); };
      c.onpointerleave = e => { if (e.pointerType !== 'mouse') return; fingers.delete(e.pointerId); this.pointer = null; redraw(); };
      c.ondblclick = e => { if (this.snapshot) this.zoom(.5, ...place(e)); };
      c.addEventListener('wheel', e => { if (!this.snapshot || !(e.ctrlKey || e.metaKey || e.shiftKey)) return; e.preventDefault(); this.zoom(Math.exp((e.deltaY || e.deltaX) / 300), ...place(e)); }, { passive: false });
      const keys = { '+': () => this.zoom(.5), '=': () => this.zoom(.5), '-': () => this.zoom(2), '0': () => this.reset(), Escape: () => this.reset(),
        ArrowLeft: () => this.move(60, 0), ArrowRight: () => this.move(-60, 0), ArrowUp: () => this.move(0, 60), ArrowDown: () => this.move(0, -60) };
      c.onkeydown = e => { if (this.snapshot && keys[e.key] && !e.ctrlKey && !e.metaKey) { e.preventDefault(); keys[e.key](); } };
      new ResizeObserver(() => this.paint()).observe(c);
      matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
    }
  }

  return { Map, CLASSES, bytes, word, colour, css, make, fit, key, clamp };
})();
