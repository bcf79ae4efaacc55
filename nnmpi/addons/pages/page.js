"use strict";
/* Draws the values in #data. Texts of logs go in by textContent alone: none is read as HTML.

   sections   an element each, made anew when a watched run tells more
   charts     uPlot's; they keep their zoom and get new numbers, unless other ones are to be drawn */

let values = JSON.parse(document.getElementById("data").textContent);
let axis = "epochs", isLog = true, charts = [], drawn = {};
const page = document.getElementById("page"), isFollowed = values.version !== null;

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (i) => css(`--c${i % 7}`);

function el(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children.filter(Boolean));
  return made;
}

const piece = (name, style, title = "") => Object.assign(el("i", name), { style, title });
const swatch = (paint) => piece("swatch", `background:${paint}`);

const button = (text, about, onclick, pressed = null) =>
  Object.assign(el("button", "", text), { type: "button", title: about, ariaLabel: about, ariaPressed: pressed, onclick });

const section = (title, about, ...children) =>
  el("section", "", el("h2", "", title), about && el("p", "about", about), ...children);

/** A section with a card for each run of which something is drawn, or nothing. */
function cards(title, about, draw) {
  const made = values.runs.map((run, i) => {
    const drawn = draw(run);
    return drawn && el("div", "card", several() && el("h3", "", swatch(colour(i)), run.name), drawn);
  });
  return made.some(Boolean) ? section(title, about, el("div", "cards", ...made)) : null;
}

const row = (cell, texts) => el("tr", "", ...texts.map((text) => el(cell, "", text)));
const table = (heads, rows) =>
  el("div", "scroll", el("table", "", el("thead", "", row("th", heads)), el("tbody", "", ...rows.map((texts) => row("td", texts)))));

function format(x) {
  if (typeof x !== "number") return "–";
  if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return x.toExponential(2).replace("e+", "e");
  return Math.abs(x) >= 1000 ? x.toLocaleString("en", { maximumFractionDigits: 0 }) : `${+x.toPrecision(4)}`;
}

// ---- what was run

const several = () => values.runs.length > 1;
const known = (what) => [...new Set(values.runs.flatMap((run) => Object.keys(run[what])))];

function head() {
  const chips = values.runs.map((run, i) => el("span", `chip ${run.state}`, several() && swatch(colour(i)), `${run.name} `, el("b", "", run.state)));
  const follows = isFollowed && el("span", "chip", el("span", "live"), el("span", "follows", "followed"));
  return el("header", "", el("p", "eyebrow", "nnmpi"), el("h1", "", values.title), el("div", "chips", ...chips, follows));
}

function figures() {
  const names = known("figures"), runs = values.runs;
  if (several())
    return table(["run", ...names], runs.map((run, i) => [el("span", "", swatch(colour(i)), run.name), ...names.map((name) => run.figures[name] || "")]));
  return el("div", "tiles", ...names.map((name) => el("div", "tile", el("span", "", name), el("b", "", runs[0].figures[name]))));
}

function facts() {
  const rows = known("facts").map((name) => {
    const texts = values.runs.map((run) => run.facts[name] || "");
    const differs = texts.some((text) => text !== texts[0]);
    return [name, ...texts.map((text) => el("span", differs ? "differs" : "", text))];
  });
  const made = table(["", ...values.runs.map((run) => several() && run.name)], rows);
  made.classList.add("facts");
  return section("What was run, and on what", several() && "Bold is what differs.", made);
}

// ---- curves

/** The points of a series of a run along the axis that is chosen, in its order. */
function points(columns, key) {
  const xs = columns[values.axes[axis]] || [], ys = columns[key] || [];
  const pairs = xs.map((x, i) => [x, ys[i]]).filter(([x, y]) => x !== null && y !== undefined);
  pairs.sort((a, b) => a[0] - b[0]);
  return [pairs.map((pair) => pair[0]), pairs.map((pair) => pair[1])];
}

/** The columns of a run with most points of a series: within epochs where it has few of them. */
const finest = (run, key) => {
  const tables = [run.few ? run.steps : {}, run.evaluations, run.epochs], count = (columns) => (columns[key] || []).length;
  return tables.reduce((best, columns) => (count(columns) > count(best) ? columns : best));
};

/** What a panel draws: a label, how it looks, and its points. */
function series(panel) {
  const found = [];
  values.runs.forEach((run, i) => {
    const add = (name, columns, key, look) => {
      const label = name && several() ? `${run.name} ${name}` : name || run.name, drawn = points(columns, key);
      found.push({ label, stroke: colour(i), width: 2, points: drawn, isShort: drawn[0].length <= 30, ...look });
    };
    Object.entries(panel.series).forEach(([key, name], k) => add(name, finest(run, key), key, { dash: k ? [6, 4] : [] }));
    if (panel.log && !run.few) add("steps", run.steps, "loss", { width: 1, alpha: 0.5 });
  });
  return found.filter((one) => one.points[0].length);
}

const lines = () => ({ stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" });

function chart(panel, box) {
  const log = panel.log && isLog && panel.drawn.every((one) => one.points[1].every((y) => y === null || y > 0));
  const text = (y) => (panel.title === "accuracy" && typeof y === "number" ? `${+(100 * y).toPrecision(4)}%` : format(y));
  const joined = (found) => uPlot.join(found.map((one) => one.points));
  const range = (u, min, max) => (min || max ? uPlot.rangeNum(min, max, 0.1, true) : [0, 1]); // zeros alone too
  const made = new uPlot({
    width: box.clientWidth, height: 216, cursor: { sync: { key: "curves" }, points: { size: 7 }, y: false },
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range } },
    axes: [{ ...lines(), space: 60, size: 34 }, { ...lines(), size: 58, values: (u, all) => all.map((y) => (y === null ? "" : text(y))) }],
    series: [{ label: axis === "epochs" ? "epoch" : axis, value: (u, x) => format(x) },
      ...panel.drawn.map((one) => ({ ...one, points: { show: one.isShort, size: 6 }, value: (u, y) => text(y) }))],
  }, joined(panel.drawn), box);
  const again = () => {
    const { min, max } = made.scales.x, xs = made.data[0];
    const whole = xs.length < 2 || (min === xs[0] && max === xs.at(-1)); // one that is zoomed stays so
    made.setData(joined(series(panel)), whole);
  };
  return { made, box, again };
}

function curves() {
  const choices = Object.keys(values.axes).map((name) =>
    button(name, `draw over ${name}`, () => { axis = name; render(true); }, name === axis));
  const log = button("log", "loss on a logarithmic axis", () => { isLog = !isLog; render(true); }, isLog);
  const panels = values.panels.map((panel) => ({ ...panel, drawn: series(panel) })).filter((panel) => panel.drawn.length);
  const boxes = panels.map((panel) => el("div", "chart", el("h3", "", panel.title)));
  const made = section("Curves", "Drag to zoom, double-click for all of it.", el("div", "buttons", ...choices, log), el("div", "grid", ...boxes));
  made.shows = JSON.stringify(panels.map((panel) => [panel.title, ...panel.drawn.map((one) => [one.label, one.isShort])]));
  made.draw = () => panels.map((panel, i) => chart(panel, boxes[i]));
  return made;
}

// ---- who holds what, and the predicted beside the measured

function blocks(run) {
  if (!run.blocks.length) return null;
  return el("div", "blocks", ...run.blocks.map((block, s) => {
    const cells = block.layers.flatMap((layer) => [
      el("span", "layer", layer.name), el("span", "kind", layer.kind),
      el("span", "parts", ...layer.parts.map(([start, stop], t) => {
        const size = 100 * (stop - start), about = layer.parts.length > 1 ? `tp ${t}: ${Math.round(10 * size) / 10}%` : "whole";
        return el("span", "part", piece("", `left:${100 * start}%;width:${size}%;background:var(--c${s % 7})`, about));
      })),
      el("span", "how", layer.how)]);
    return el("div", "block", el("h4", "", swatch(`var(--c${s % 7})`), run.blocks.length > 1 ? `stage ${s}, ` : "", block.ranks), el("div", "layers", ...cells));
  }));
}

const SHADES = { waiting: "var(--k-wait)", communicating: "#e58fb5", other: "var(--c6)" };
const shade = (name, k) => SHADES[name] || `var(--c${k % 7})`;

/** A bar a row, in parts of several colours, and below it the numbers. */
function bars(found) {
  if (!found.rows.length || !found.names.length) return null;
  const total = (one) => one.sizes.reduce((a, b) => a + b, 0), most = Math.max(...found.rows.map(total)) || 1;
  const legend = el("div", "legend", ...found.names.map((name, k) => el("span", "", swatch(shade(name, k)), name)));
  const rows = found.rows.map((one) => {
    const parts = one.sizes.map((size, k) =>
      piece("", `width:${(100 * size) / most}%;background:${shade(found.names[k], k)}`, `${found.names[k]}: ${one.text[k]}`));
    return el("div", "bar", el("span", "", `rank${/[^0-9]/.test(one.ranks) ? "s" : ""} ${one.ranks}`), el("span", "track", ...parts));
  });
  const numbers = table(["ranks", ...found.names], found.rows.map((one) => [one.ranks, ...one.text]));
  return el("div", "", legend, ...rows, el("details", "", el("summary", "", "numbers"), numbers));
}

function compared(run) {
  if (!run.compared.length) return null;
  return table(["", "ranks", "predicted", "measured", "", "difference"], run.compared.map((one) => {
    const most = Math.max(...one.sizes) || 1;
    const pair = el("span", "pair", ...one.sizes.map((size, k) => piece(k ? "measured" : "predicted", `width:${(100 * size) / most}%`)));
    return [one.what, one.ranks, one.text[0], one.text[1] || "–", pair, one.error];
  }));
}

// ---- the timeline of a step

function timelines() {
  const found = values.runs.flatMap((run) => (run.timelines || []).map((t) => [run, t]));
  if (!found.length) return null;
  const boxes = found.map(([run]) => el("div", "timeline", several() && el("h3", "", run.name)));
  const made = section("Timeline", "Drag to zoom, double-click for the whole run; on a touch screen drag to move.", ...boxes);
  made.shows = JSON.stringify(found.map(([run, t]) => [run.name, t.name, t.end, t.ranks]));
  made.draw = () => found.map(([, t], i) => new Timeline(t, boxes[i]));
  return made;
}

class Timeline {
  constructor(t, box) {
    this.t = t;
    this.box = box;
    this.step = t.steps.findIndex(([k]) => k === t.median);
    this.rows = Math.min(t.simulated.start.length ? 36 : 26, Math.max(2, 1200 / t.ranks)); // pixels of each
    for (const all of [t.measured, t.simulated]) {
      all.first = Array.from({ length: t.ranks + 1 }, (_, r) => lower(all.rank, r));
      all.longest = all.length.reduce((a, b) => Math.max(a, b), 0);
    }
    this.until = t.simulated.start.reduce((most, start, i) => Math.max(most, start + t.simulated.length[i]), 0);
    this.background = t.styles.findIndex(([kind]) => kind === "background");
    this.title = el("b", "");
    this.tip = el("div", "tip");
    this.paints = t.styles.map(([kind, , , paint]) => css(`--k-${kind}`) || paint);
    const legend = t.styles.map(([, about], i) => el("span", "", swatch(this.paints[i]), about));
    if (this.until) legend.push(el("span", "", "thin, below: simulated"));
    box.append(el("div", "buttons",
      button("◀", "the step before", () => this.show(this.step - 1)), this.title, button("▶", "the next step", () => this.show(this.step + 1)),
      button("+", "zoom in", () => this.zoom(0.5)), button("−", "zoom out", () => this.zoom(2)), button("all", "all steps", () => this.scale(0, t.end))),
    this.tip, el("div", "legend", ...legend));
    this.made = new uPlot(this.options(), [[0, t.end], [null, null]], box);
    box.insertBefore(this.made.root, this.tip);
    this.touch();
    this.show(this.step);
  }

  options() {
    const { t } = this, every = Math.ceil(14 / this.rows);
    const ranks = Array.from({ length: Math.ceil(t.ranks / every) }, (_, i) => i * every);
    return {
      width: this.box.clientWidth, height: t.ranks * this.rows + 40, padding: [4, 12, 0, 0], legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (u, min, max) => [min, max] }, y: { dir: -1, range: () => [0, t.ranks] } },
      axes: [{ ...lines(), grid: { show: false }, values: (u, all) => all.map((x) => `${format(x)} ms`), space: 80, size: 34 },
        { ...lines(), grid: { show: false }, size: 62, splits: () => ranks.map((r) => r + 0.5), values: () => ranks.map((r) => `rank ${r}`) }],
      series: [{}, {}],
      hooks: { drawClear: [(u) => this.draw(u)], setCursor: [(u) => this.hover(u)] },
    };
  }

  scale(min, max) {
    const { end } = this.t, wide = Math.min(Math.max(max - min, 1e-4), end);
    const start = Math.min(Math.max(min, 0), end - wide);
    this.made.setScale("x", { min: start, max: start + wide });
  }

  zoom(factor, at = 0.5) {
    const { min, max } = this.made.scales.x, middle = min + at * (max - min);
    this.scale(middle - factor * (middle - min), middle + factor * (max - middle));
  }

  show(step) {
    const { steps } = this.t;
    this.step = Math.min(Math.max(step, 0), steps.length - 1);
    const [k, start, end] = steps[this.step], until = Math.max(end, start + this.until), more = 0.02 * (until - start);
    const simulated = this.until ? `, simulated ${format(this.until)} ms` : "";
    this.title.textContent = `step ${k}${k === this.t.median ? " (median)" : ""}: ${format(end - start)} ms${simulated}`;
    this.scale(start - more, until + more);
  }

  /** A finger moves the picture along, and with ctrl the wheel zooms, as two fingers on a pad do. */
  touch() {
    const { over } = this.made;
    let from = null;
    over.onpointerdown = (e) => { from = e.pointerType === "touch" ? { x: e.clientX, ...this.made.scales.x } : null; };
    over.onpointermove = (e) => {
      if (!from) return;
      const by = ((from.x - e.clientX) / over.clientWidth) * (from.max - from.min);
      this.scale(from.min + by, from.max + by);
    };
    over.onpointerup = over.onpointercancel = () => { from = null; };
    over.addEventListener("wheel", (e) => {
      if (!e.ctrlKey) return;
      e.preventDefault();
      this.zoom(e.deltaY < 0 ? 0.8 : 1.25, e.offsetX / over.clientWidth);
    }, { passive: false });
  }

  /** Calls act(all, i, start, lane) for the spans of a rank from min to max; a lane is where in its row: from, height. */
  visit(r, min, max, act) {
    const { measured, simulated, steps } = this.t;
    const each = (all, from, lane) => {
      for (let i = lower(all.start, min - from - all.longest, all.first[r], all.first[r + 1]); i < all.first[r + 1] && all.start[i] + from <= max; i++)
        if (all.start[i] + from + all.length[i] >= min) act(all, i, all.start[i] + from, lane(all.kind[i]));
    };
    const high = this.until ? 0.5 : 0.72;
    each(measured, 0, (kind) => (kind === this.background ? [0.06 + high, 0.1] : [0.06, high]));
    const near = steps.filter(([, start, end]) => start <= max && Math.max(end, start + this.until) >= min);
    if (near.length <= 40) near.forEach(([, start]) => each(simulated, start, () => [0.7, 0.22]));
  }

  draw(u) {
    const { ctx, bbox: { left, top, width, height } } = u, { min, max } = u.scales.x, ratio = devicePixelRatio;
    const scale = width / (max - min), high = height / this.t.ranks;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "middle";
    for (let r = 0; r < this.t.ranks; r++) {
      ctx.fillStyle = css("--idle");
      ctx.fillRect(left, top + (r + 0.06) * high, width, (this.until ? 0.5 : 0.72) * high);
      this.visit(r, min, max, (all, i, start, [from, part]) => {
        const [kind, , mark] = this.t.styles[all.kind[i]], x = left + (start - min) * scale, wide = all.length[i] * scale, y = top + (r + from) * high;
        ctx.fillStyle = this.paints[all.kind[i]];
        const gap = wide > 5 * ratio ? ratio : 0;
        ctx.fillRect(x, y, Math.max(wide - gap, 0.6), part * high);
        const letter = `${mark}${all.micro[i] < 0 ? "" : all.micro[i]}`;
        if (part * high < 13 * ratio || kind === "wait" || wide < (letter.length * 7 + 6) * ratio) return;
        ctx.fillStyle = "#10151f";
        ctx.fillText(letter, x + 4 * ratio, y + (part * high) / 2);
      });
    }
    ctx.restore();
  }

  hover(u) {
    const { left, top } = u.cursor, time = u.posToVal(left, "x"), place = (top / u.over.clientHeight) * this.t.ranks, r = Math.floor(place);
    let found = null;
    if (left >= 0 && r >= 0 && r < this.t.ranks) {
      const near = (2 / u.over.clientWidth) * (u.scales.x.max - u.scales.x.min);
      this.visit(r, time - near, time + near, (all, i, start, [from, part]) => {
        const isIn = time >= start && time <= start + all.length[i];
        if (place - r >= from && place - r <= from + part && (isIn || !found)) found = [all, i, start];
      });
    }
    this.tip.style.display = found ? "block" : "none";
    if (!found) return;
    const [all, i, start] = found, [, about] = this.t.styles[all.kind[i]], micro = all.micro[i] < 0 ? "" : ` ${all.micro[i]}`;
    this.tip.replaceChildren(el("b", "", `${about}${micro}`), all === this.t.simulated ? " simulated" : "",
      el("br"), `rank ${r}, stage ${all.stage[i]}`, el("br"), `${format(all.length[i])} ms, from ${format(start)} ms`);
    const plot = u.over.getBoundingClientRect(), outer = this.box.getBoundingClientRect(), wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(plot.left - outer.left + left + 14, outer.width - wide))}px`;
    this.tip.style.top = `${plot.top - outer.top + (r + 1) * (u.over.clientHeight / this.t.ranks) + 6}px`;
  }
}

/** The first place from `lo` on whose number is not below x. */
function lower(numbers, x, lo = 0, hi = numbers.length) {
  while (lo < hi) {
    const middle = (lo + hi) >> 1;
    if (numbers[middle] < x) lo = middle + 1;
    else hi = middle;
  }
  return lo;
}

// ---- the page

const COMPARED = `What a rank sends in a step: bytes, and in how many messages. Predicted is by formula, without a run;
  the memory that is measured is what a process has grown by since before its model was made, Python's own included.`;

const STALENESS = `The gradients of each worker, by the number of updates that were made since it had got the parameters that
  a gradient was computed from.`;

const SECTIONS = {
  head, figures, facts, curves, timelines,
  seconds: () => cards("Where the time went", "Of the steps that were traced.", (run) => bars(run.seconds)),
  staleness: () => cards("How stale gradients were", STALENESS, (run) => bars(run.staleness)),
  compared: () => cards("Predicted, and measured", COMPARED, compared),
  held: () => cards("What a rank holds", "Bytes, as predicted.", (run) => bars(run.held)),
  holds: () => cards("Who holds what", "A row a layer, the parts of its parameters that ranks along tp have; blocks that are alike are one row.", blocks),
  said: () => cards("What the run said", null, (run) => run.said.length && el("pre", "", run.said.join("\n"))),
};

/** Makes sections anew; those of charts only if they are to show other charts. */
function render(anew) {
  for (const [name, section] of Object.entries(SECTIONS)) {
    const made = ((name === "head" || values.runs.length) && section()) || el("div", "none"), before = drawn[name];
    if (before && made.shows && made.shows === before.made.shows && !anew) {
      before.charts.forEach((one) => one.again?.());
      continue;
    }
    before?.charts.forEach((one) => one.made.destroy());
    if (before) before.made.replaceWith(made);
    else page.append(made);
    drawn[name] = { made, charts: made.draw ? made.draw() : [] };
  }
  charts = Object.values(drawn).flatMap((one) => one.charts);
}

async function follow() {
  let wait = 1000, told = "followed";
  try {
    const found = await (await fetch(`data?${values.version}`)).json();
    if (found.runs) {
      values = found;
      render(false);
    }
    told = found.problem || told;
  } catch (error) {
    wait = 5000;
    told = "nobody answers: is nnmpi.watch over?";
  }
  document.querySelector(".follows").textContent = told;
  setTimeout(follow, wait);
}

page.replaceChildren();
render(true);
addEventListener("resize", () => charts.forEach(({ made, box }) => box.clientWidth && made.setSize({ width: box.clientWidth, height: made.height })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => render(true));
if (isFollowed) follow();
