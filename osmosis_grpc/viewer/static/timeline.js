// The turns of a rollout: windows that are loaded near the view and emptied far from it, and addresses such as #turn=12
// and #failed. A page that is a file has all turns, and has no address to load them from.

import { choose } from "./page.js";

const timeline = document.getElementById("timeline");
const NEAR = "1200px";   // a window this near to the view is loaded
const FAR = 1600;        // a window this far from the view is emptied; a screen of 720 pixels has at most four windows
const AGAIN = 2000;      // a load that failed begins again after this many milliseconds, if the window is still near

function filled(part) {
  return part.querySelector("details.turn") !== null;
}

// Loads a window. Resolves when it has its turns, also if its load had begun before.
const loads = new WeakMap();
function load(part) {
  if (filled(part)) return Promise.resolve();
  if (!loads.has(part)) loads.set(part, request(part).finally(() => { loads.delete(part); requestAnimationFrame(sweep); }));
  return loads.get(part);
}

async function request(part) {
  const address = `${timeline.dataset.turns}&first=${part.dataset.first}`;
  try {
    // Without a source, htmx takes the body, and drops the load of a window while it loads two others.
    await window.htmx.ajax("GET", address, { source: part, target: part, swap: "innerHTML" });
  } catch { /* page.js says what is wrong */ }
  if (filled(part)) part.style.minHeight = "";
  else setTimeout(() => { near.unobserve(part); near.observe(part); }, AGAIN);
}

function empty(part) {
  part.style.minHeight = `${part.offsetHeight}px`;
  part.replaceChildren();
}

const near = new IntersectionObserver((seen) => {
  for (const each of seen) if (each.isIntersecting) load(each.target);
}, { rootMargin: NEAR });

function watch(part) {
  if (!timeline.dataset.turns) return;
  const turns = part.dataset.names.split(" ").length;
  if (!filled(part)) part.style.minHeight = `${turns * 30}px`;
  near.observe(part);
}

// The browser sends one scroll event a frame. A window that arrives after the view has moved on is emptied before it is
// drawn.
function sweep() {
  if (!timeline.dataset.turns) return;
  for (const part of timeline.children) {
    const box = part.getBoundingClientRect();
    if ((box.bottom < -FAR || box.top > innerHeight + FAR) && filled(part)) empty(part);
  }
}
addEventListener("scroll", sweep, { passive: true });

// -- addresses ---------------------------------------------------------------------------------------------------
async function follow() {
  const given = new URLSearchParams(location.hash.slice(1));
  const named = given.has("turn") && `${given.get("sample") ?? "main"}/${given.get("turn")}`;
  const wanted = given.has("failed") ? timeline.dataset.failing : named;
  if (!wanted) return;
  const part = [...timeline.children].find((each) => each.dataset.names.split(" ").includes(wanted));
  if (!part) return;
  const asked = location.hash;
  await load(part);
  if (location.hash !== asked) return;
  const turn = [...part.querySelectorAll("details.turn")].find((each) => each.dataset.name === wanted);
  if (!turn) return;
  turn.open = true;
  choose(turn, false);
  hold(turn);
}
addEventListener("hashchange", follow);

// The turns above a turn grow when their bodies arrive. It stays at the top until the reader moves, or until no body has
// been on its way for QUIET milliseconds.
const QUIET = 3000;
let held = null, release = 0;
function hold(turn) {
  held = turn;
  releaseLater();
  turn.scrollIntoView({ block: "start" });
}
function releaseLater() {
  clearTimeout(release);
  release = setTimeout(() => {
    if (timeline.querySelector(".htmx-request")) releaseLater();
    else held = null;
  }, QUIET);
}
timeline.addEventListener("htmx:afterSwap", () => { if (held) releaseLater(); });
for (const moved of ["wheel", "touchstart", "keydown", "pointerdown"])
  addEventListener(moved, () => { held = null; }, { passive: true });
new ResizeObserver(() => held?.scrollIntoView({ block: "start" })).observe(timeline);

timeline.addEventListener("click", (event) => {
  const turn = event.target.closest("summary")?.closest("details.turn");
  if (!turn) return;
  const [sample, number] = turn.dataset.name.split(/\/(?=[^/]*$)/);
  const hash = new URLSearchParams({ turn: number, ...(sample === "main" ? {} : { sample }) });
  history.replaceState(null, "", `#${hash}`);
  choose(turn, false);
});

// -- live updates ------------------------------------------------------------------------------------------------
// The server sends the newest turns. Known ones are replaced and stay open; new ones are added at the end.
const newest = document.getElementById("newest");
newest.addEventListener("htmx:afterSwap", () => {
  for (const turn of [...newest.querySelectorAll("details.turn")]) {
    const known = [...timeline.querySelectorAll("details.turn")].find((each) => each.dataset.name === turn.dataset.name);
    if (!known) add(turn);
    else if (known.querySelector("summary").textContent !== turn.querySelector("summary").textContent) {
      known.className = turn.className;
      known.querySelector("summary").replaceWith(turn.querySelector("summary"));
      if (known.open) window.htmx.trigger(known.querySelector(".body"), "reload");
    } else known.querySelector(".bars").replaceWith(turn.querySelector(".bars"));
  }
  newest.replaceChildren();
});

function add(turn) {
  let part = timeline.lastElementChild;
  if (part && !filled(part) && part.dataset.names.split(" ").includes(turn.dataset.name)) return;
  if (!part) {
    part = document.createElement("section");
    part.className = "window";
    part.dataset.first = "0";
    part.dataset.names = "";
    timeline.append(part);
  }
  part.dataset.names = `${part.dataset.names} ${turn.dataset.name}`.trim();
  part.append(turn);
  window.htmx.process(turn);
}

// -- what is shown -----------------------------------------------------------------------------------------------
for (const [id, name] of [["show-reasoning", "with-reasoning"], ["show-tools", "with-tools"], ["show-about", "with-about"]]) {
  const box = document.getElementById(id);
  const set = () => {
    timeline.classList.toggle(name, box.checked);
    if (id === "show-reasoning") for (const each of timeline.querySelectorAll(".reasoning")) each.open = box.checked;
  };
  box.addEventListener("change", set);
  set();
}
timeline.addEventListener("htmx:afterSwap", () => {
  if (!document.getElementById("show-reasoning").checked) return;
  for (const each of timeline.querySelectorAll(".reasoning")) each.open = true;
});

for (const part of timeline.children) watch(part);
if (location.hash) follow();
