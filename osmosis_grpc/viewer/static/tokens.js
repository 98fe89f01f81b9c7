// The tokens of a sample: draws the rows in view, loads windows of tokens, and has a strip over all tokens to jump.

const grid = document.getElementById("tokens");
const rows = document.getElementById("token-rows");
const said = document.getElementById("chosen-token");
const colour = document.getElementById("colour");
const ids = document.getElementById("ids");
const KEPT = 24;         // at most this many windows are in memory
const HIGH = 34;         // the height of a row, in pixels, as in the style sheet
const WIDE = 68;         // a cell has at least this width
const AROUND = 4;        // this many rows above and below the view are drawn
const SCALES = {         // the highest class whose limit the value reaches
  logprob: { limits: [-0.1, -0.5, -1, -2, -5, -Infinity], names: ["≥ -0.1", "≥ -0.5", "≥ -1", "≥ -2", "≥ -5", "< -5"] },
  entropy: { limits: [0.1, 0.5, 1, 2, 4, Infinity], names: ["≤ 0.1", "≤ 0.5", "≤ 1", "≤ 2", "≤ 4", "> 4"] },
  difference: { limits: [0.001, 0.01, 0.05, 0.2, 1, Infinity], names: ["±0.001", "±0.01", "±0.05", "±0.2", "±1", "more"] },
};

const windows = new Map();
let about, drifts, driftAt, begins, turned;

async function learn() {
  about = await (await fetch(grid.dataset.about)).json();
  drifts = about.segments.filter((each) => each.drift !== null)
    .map((each) => ({ ...each, at: Math.min(each.start + each.drift, each.start + each.tokens - 1) }));
  driftAt = new Map(drifts.map((each) => [each.at, each]));
  begins = new Set(about.segments.slice(1).map((each) => each.start));
  const replies = about.runs.filter((run) => run[1] === "reply");
  turned = new Set(replies.filter((run, at) => at && replies[at - 1][3] !== run[3]).map((run) => run[0]));
}

// A page that began without tokens has no grid. It is loaded again when there are some.
if (!grid) {
  document.addEventListener("htmx:sseMessage", () => { if (document.querySelector(".segments")) location.reload(); });
  await new Promise(() => {});
}
await learn();
const drawn = new Map();  // the rows in the page, by number
let columns = 1, chosen = 0;

// -- the tokens ----------------------------------------------------------------------------------------------------
async function load(number) {
  if (windows.has(number)) return;
  windows.set(number, null);
  const place = `&first=${number * about.window}&count=${about.window}`;
  const [answer, texts] = await Promise.all([
    fetch(grid.dataset.windows + place), grid.dataset.texts ? fetch(grid.dataset.texts + place) : null,
  ]);
  if (!answer.ok) return;
  const bytes = await answer.arrayBuffer();
  const [first, count, bits] = new Uint32Array(bytes, 0, 4);
  let at = 16;
  const next = (Type) => { const values = new Type(bytes, at, count); at += 4 * count; return values; };
  const part = { first, ids: next(Uint32Array), logprob: next(Float32Array) };
  if (bits & 1) part.trainer = next(Float32Array);
  if (bits & 2) part.entropy = next(Float32Array);
  if (texts?.ok) part.texts = await texts.json();
  windows.set(number, part);
  for (const old of [...windows.keys()].slice(0, Math.max(0, windows.size - KEPT))) windows.delete(old);
  draw();
}

function token(index) {
  const number = Math.floor(index / about.window), part = windows.get(number);
  if (!part) { load(number); return null; }
  const at = index - part.first, logprob = part.logprob[at], trainer = part.trainer?.[at] ?? NaN;
  return { id: part.ids[at], text: part.texts?.[at] ?? "", logprob, trainer, difference: trainer - logprob, entropy: part.entropy?.[at] ?? NaN };
}

function runOf(index) {
  let low = 0, high = about.runs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (about.runs[middle][0] <= index) low = middle; else high = middle - 1;
  }
  const [, kind, turn, version] = about.runs[low];
  return { kind, turn, version };
}

const written = (value, digits = 3) => Number.isNaN(value) ? "" : value.toFixed(digits).replace(/^-(0\.0*)$/, "$1");

function level(value) {
  const { limits } = SCALES[colour.value];
  if (Number.isNaN(value)) return "none";
  if (colour.value === "logprob") return limits.findIndex((limit) => value >= limit);
  return limits.findIndex((limit) => Math.abs(value) <= limit);
}

function words(index, known, run) {
  const drift = driftAt.get(index);
  return [
    `token ${index}`, known.text ? JSON.stringify(known.text) : "", `id ${known.id}`, run.kind,
    Number.isNaN(known.logprob) ? "" : `logprob ${written(known.logprob, 4)}`,
    Number.isNaN(known.trainer) ? "" : `trainer ${written(known.trainer, 4)} (${written(known.difference, 4)})`,
    Number.isNaN(known.entropy) ? "" : `entropy ${written(known.entropy, 4)}`,
    run.version ? `version ${run.version}` : "",
    drift ? `drift: the first token that differs, index ${drift.drift} of its segment` : "",
    begins.has(index) ? "begins a segment" : "",
  ].filter(Boolean).join(" · ");
}

// Shows spaces and the ends of lines as characters that can be seen. Among texts, an id begins with #.
const named = (known) => known.text && !ids?.checked
  ? known.text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") : `${ids && !ids.checked ? "#" : ""}${known.id}`;

// -- drawing -------------------------------------------------------------------------------------------------------
function cell(index) {
  const box = document.createElement("span");
  box.setAttribute("role", "gridcell");
  box.dataset.index = index;
  const known = token(index), run = runOf(index);
  const top = document.createElement("b"), low = document.createElement("small");
  box.append(top, low);
  box.className = `token ${run.kind}`;
  if (index === chosen) box.classList.add("chosen");
  if (begins.has(index)) box.classList.add("begins");
  if (turned.has(index)) box.classList.add("turned");
  if (!known) return box;
  const value = known[colour.value];
  box.classList.add(`level-${level(value)}`);
  top.textContent = `${driftAt.has(index) ? "≠ " : ""}${named(known)}`;
  if (driftAt.has(index)) box.classList.add("drift");
  low.textContent = written(value, 2);
  box.title = words(index, known, run);
  return box;
}

function row(number) {
  const made = document.createElement("div");
  made.setAttribute("role", "row");
  made.setAttribute("aria-rowindex", number + 1);
  made.style.top = `${number * HIGH}px`;
  made.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  for (let at = number * columns; at < Math.min(about.tokens, (number + 1) * columns); at++) made.append(cell(at));
  return made;
}

// Draws the rows that came into view, and removes those out of view.
function scrolled() {
  const count = Math.ceil(about.tokens / columns);
  const first = Math.max(0, Math.floor(grid.scrollTop / HIGH) - AROUND);
  const last = Math.min(count, Math.ceil((grid.scrollTop + grid.clientHeight) / HIGH) + AROUND);
  for (const [number, old] of drawn) if (number < first || number >= last) { old.remove(); drawn.delete(number); }
  for (let number = first; number < last; number++) {
    if (drawn.has(number)) continue;
    const made = row(number);
    drawn.set(number, made);
    rows.append(made);
  }
}

// Draws all rows in view anew.
function draw() {
  columns = Math.max(1, Math.floor(grid.clientWidth / WIDE));
  const count = Math.ceil(about.tokens / columns);
  rows.style.height = `${count * HIGH}px`;
  grid.setAttribute("aria-rowcount", count);
  rows.replaceChildren();
  drawn.clear();
  scrolled();
  tell();
}

function tell() {
  const known = token(chosen);
  if (!known) return;
  const run = runOf(chosen), text = words(chosen, known, run);
  if (said.dataset.text === text) return;
  said.dataset.text = text;
  said.replaceChildren(text);
  if (!run.turn) return;
  const link = document.createElement("a");
  const sample = grid.dataset.sample === "main" ? {} : { sample: grid.dataset.sample };
  link.href = `${grid.dataset.turns}#${new URLSearchParams({ turn: run.turn, ...sample })}`;
  link.textContent = `turn ${run.turn}`;
  said.append(" · ", link);
}

let asked = false;
function later() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; scrolled(); });
}

function mark() {
  rows.querySelector(".chosen")?.classList.remove("chosen");
  rows.querySelector(`[data-index="${chosen}"]`)?.classList.add("chosen");
  tell();
}

function choose(index, middle = false) {
  chosen = Math.max(0, Math.min(about.tokens - 1, index));
  const top = Math.floor(chosen / columns) * HIGH, low = top + HIGH - grid.clientHeight;
  if (middle) grid.scrollTop = top - grid.clientHeight / 3;
  else if (grid.scrollTop > top) grid.scrollTop = top;
  else if (grid.scrollTop < low) grid.scrollTop = low;
  history.replaceState(null, "", `#token=${chosen}`);
  scrolled();
  mark();
}

// -- live updates --------------------------------------------------------------------------------------------------
// The server says that there are new tokens. Known windows stay, but for the last one, which may have grown.
async function grown() {
  const before = about.tokens, atEnd = grid.scrollTop + grid.clientHeight > rows.offsetHeight - 2 * HIGH;
  await learn();
  for (const number of [...windows.keys()]) if (number >= Math.floor(before / about.window) || about.tokens < before) windows.delete(number);
  plot.destroy();
  plot = strip();
  draw();
  if (atEnd && about.tokens > before && before * HIGH > columns * grid.clientHeight) grid.scrollTop = rows.offsetHeight;
}
if (grid.dataset.live) document.addEventListener("htmx:sseMessage", (event) => { if (event.detail.type === "head") grown(); });

function legend() {
  const parts = SCALES[colour.value].names.map((name, number) => {
    const part = document.createElement("span"), box = document.createElement("i");
    box.className = `level-${number}`;
    part.append(box, name);
    return part;
  });
  document.getElementById("legend").replaceChildren(...parts);
}

// -- the strip over all tokens -------------------------------------------------------------------------------------
function strip() {
  const box = document.getElementById("strip"), { step, mean, lowest, entropy } = about.strip;
  const style = getComputedStyle(document.documentElement), shade = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: shade("--soft"), grid: { stroke: shade("--rule"), width: 1 }, ticks: { show: false } };
  const line = (label, name) => ({ label, stroke: shade(name), width: 1, points: { show: about.tokens <= 400, size: 4 }, spanGaps: false });
  const several = step > 1;  // of a single token, the lowest is the mean
  const given = [mean.map((_, number) => number * step), ...(several ? [lowest] : []), mean, ...(entropy ? [entropy] : [])];
  const series = [{}, ...(several ? [line("lowest logprob", "--tools")] : []), line("mean logprob", "--model")];
  if (entropy) series.push(line("mean entropy", "--agent"));
  const plot = new window.uPlot({
    width: box.clientWidth, height: 110, series, legend: { show: false }, scales: { x: { time: false } },
    axes: [{ ...axis, size: 24 }, { ...axis, size: 44, space: 22 }], cursor: { y: false, drag: { x: false, y: false } },
  }, given, box);
  plot.over.addEventListener("click", () => choose(Math.round(plot.posToVal(plot.cursor.left, "x")), true));
  return plot;
}

// -- keys and addresses --------------------------------------------------------------------------------------------
const moves = {
  ArrowLeft: () => chosen - 1, ArrowRight: () => chosen + 1,
  ArrowUp: () => chosen - columns, ArrowDown: () => chosen + columns,
  PageUp: () => chosen - 10 * columns, PageDown: () => chosen + 10 * columns,
  Home: () => 0, End: () => about.tokens - 1,
};
grid.addEventListener("keydown", (event) => {
  const move = moves[event.key];
  if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  choose(move());
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "d" || event.ctrlKey || event.metaKey || !drifts.length || event.target.matches("input, select")) return;
  choose((drifts.find((each) => each.at > chosen) ?? drifts[0]).at, true);
});
grid.addEventListener("click", (event) => {
  const box = event.target.closest("[data-index]");
  if (box) choose(Number(box.dataset.index));
});
grid.addEventListener("scroll", later, { passive: true });
ids?.addEventListener("change", draw);
colour.addEventListener("change", () => { legend(); draw(); });

function follow() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.has("token")) choose(Number(given.get("token")) || 0, true);
  if (given.has("drift") && drifts.length) choose(drifts[0].at, true);
  const turn = Number(given.get("turn"));
  const run = turn && about.runs.find((each) => each[2] === turn);
  if (run) choose(run[0], true);
}
addEventListener("hashchange", follow);

legend();
draw();
let plot = strip();
new ResizeObserver(() => {
  plot.setSize({ width: document.getElementById("strip").clientWidth, height: 110 });
  draw();
}).observe(grid);
new MutationObserver(() => { plot.destroy(); plot = strip(); })
  .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
if (location.hash) follow();
