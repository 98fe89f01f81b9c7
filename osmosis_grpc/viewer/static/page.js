// What all pages share: keys, copy buttons, times that go on, the theme, and the pause of live updates.

const all = (query, within = document) => [...within.querySelectorAll(query)];
const one = (id) => document.getElementById(id);

// -- times -------------------------------------------------------------------------------------------------------
// The server's clock and the browser's may differ, so times go on from what the server has written.
const shift = new WeakMap();

export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 60) return s < 9.95 ? `${s.toFixed(1)} s` : `${s.toFixed(0)} s`;
  const minutes = Math.floor(s / 60), rest = String(Math.floor(s) % 60).padStart(2, "0");
  if (minutes < 60) return `${minutes}:${rest}`;
  return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${rest}`;
}

function written(text) {
  const parts = text.replace(/( s)?( ago)?$/, "").split(":").map(Number);
  return parts.reduce((sum, part) => 60 * sum + part, 0);
}

function tick() {
  if (document.hidden || paused) return;
  const now = Date.now() / 1000;
  for (const element of all("[data-since], [data-ago]")) {
    const ago = "ago" in element.dataset;
    if (!shift.has(element)) {
      const first = written(element.textContent);
      shift.set(element, Number.isNaN(first) ? Number(element.dataset.ago ?? element.dataset.since) : now - first);
    }
    const text = span(now - shift.get(element)) + (ago ? " ago" : "");
    if (element.textContent !== text) element.textContent = text;
  }
}
setInterval(tick, 1000);

// -- live updates ------------------------------------------------------------------------------------------------
let paused = false, waiting = 0;
const pause = one("pause");
if (document.querySelector("[sse-connect]")) pause.hidden = false;
document.querySelector(".top nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

function say() {
  one("missed").textContent = paused && waiting ? `${waiting} update${waiting > 1 ? "s" : ""} not shown` : "";
}

function setPaused(wanted) {
  if (pause.hidden) return;
  paused = wanted;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Follow" : "Pause";
  if (!paused && waiting) {
    if (one("rows")) window.htmx.trigger(one("rows"), "refresh");
    else location.reload();
  }
  waiting = 0;
  say();
}
pause.addEventListener("click", () => setPaused(!paused));

// A browser has at most six connections to a host. A hidden tab closes its stream, so that a seventh tab can be opened.
class Stream {
  #listeners = [];
  #source = null;
  #turn = () => { if (document.hidden) this.#source?.close(); else this.#connect(); };

  constructor(url) {
    this.url = url;
    document.addEventListener("visibilitychange", this.#turn);
    if (!document.hidden) this.#connect();
  }

  #connect() {
    this.#source?.close();
    this.#source = new EventSource(this.url);
    this.#source.onopen = (event) => this.onopen?.(event);
    this.#source.onerror = (event) => {
      if (this.readyState === EventSource.CLOSED) this.close();  // htmx makes a new stream
      this.onerror?.(event);
    };
    for (const [name, listener] of this.#listeners) this.#source.addEventListener(name, listener);
  }

  get readyState() { return this.#source?.readyState ?? EventSource.CONNECTING; }

  addEventListener(name, listener) {
    this.#listeners.push([name, listener]);
    this.#source?.addEventListener(name, listener);
  }

  removeEventListener(name, listener) {
    this.#listeners = this.#listeners.filter((each) => each[0] !== name || each[1] !== listener);
    this.#source?.removeEventListener(name, listener);
  }

  close() {
    document.removeEventListener("visibilitychange", this.#turn);
    this.#source?.close();
  }
}
if (window.htmx) window.htmx.createEventSource = (url) => new Stream(url);

document.addEventListener("htmx:sseBeforeMessage", (event) => {
  if (!paused) return;
  event.preventDefault();
  waiting += 1;
  say();
});
// A part that is replaced keeps what a person has opened and how far a table is scrolled.
let kept = null;
document.addEventListener("htmx:sseBeforeMessage", (event) => {
  const part = event.target;
  if (paused || !part.matches?.("[sse-swap]")) return;
  kept = { part, open: all("details[id]", part).filter((each) => each.open).map((each) => each.id), left: all(".scroll", part).map((each) => each.scrollLeft) };
});
document.addEventListener("htmx:sseMessage", () => {
  if (!kept) return;
  const { part, open, left } = kept;
  kept = null;
  for (const id of open) if (one(id)) one(id).open = true;
  all(".scroll", part).forEach((each, at) => { each.scrollLeft = left[at] ?? 0; });
});
const heard = new WeakSet();  // a stream is opened again after an error
document.addEventListener("htmx:sseOpen", (event) => {
  const source = event.detail.source;
  one("problem").textContent = "";
  if (heard.has(source)) return;
  heard.add(source);
  source.addEventListener("problem", (message) => { one("problem").textContent = message.data; });
  source.addEventListener("missed", (message) => {
    one("missed").textContent = `${message.data} updates skipped: this browser was slow`;
  });
  source.addEventListener("ended", () => { source.close(); pause.hidden = true; });
});
document.addEventListener("htmx:sseError", () => {
  one("problem").textContent = "the viewer does not answer; this page connects again by itself";
});
document.addEventListener("htmx:sendError", () => { one("problem").textContent = "the viewer does not answer"; });
document.addEventListener("htmx:responseError", (event) => {
  one("problem").textContent = event.detail.xhr.responseText.replace(/<[^>]*>/g, " ").trim().slice(0, 300);
});

// -- copying -----------------------------------------------------------------------------------------------------
async function copy(button) {
  const from = button.dataset.copyFrom;
  const text = from ? await (await fetch(from)).text() : button.dataset.copy;
  const label = button.dataset.label ??= button.textContent;  // a second click finds the text "Copied"
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    const area = document.createElement("textarea");  // the clipboard needs https or localhost
    area.value = text;
    document.body.append(area);
    area.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Copy failed";
    area.remove();
  }
  setTimeout(() => { button.textContent = label; }, 1200);
}
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) copy(button);
});

// -- filters -----------------------------------------------------------------------------------------------------
// The address of a filter can be shared, so it has no fields that are empty.
document.addEventListener("formdata", (event) => {
  if (!event.target.matches(".filters")) return;
  for (const [field, value] of [...event.formData]) if (value === "") event.formData.delete(field);
});

// -- theme -------------------------------------------------------------------------------------------------------
function turnTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
}
one("theme").addEventListener("click", turnTheme);
one("help-button").addEventListener("click", () => one("help").showModal());

// -- keys --------------------------------------------------------------------------------------------------------
// The rows that j and k go through: rollouts, turns, or findings. The chosen one stays chosen when its row is replaced.
let chosen = null;
const rows = () => all(".rollouts tbody tr, details.turn, .findings [data-id]");
const target = (row) => row.querySelector("summary, th a") ?? row.querySelector("a:not(.reason)") ?? row.querySelector("a");
const name = (row) => row.dataset.id ?? row.dataset.name;

export function choose(row, scroll = true) {
  for (const other of all(".chosen")) other.classList.remove("chosen");
  if (!row) return;
  chosen = name(row);
  row.classList.add("chosen");
  if (scroll) row.scrollIntoView({ block: "nearest" });
  target(row)?.focus({ preventScroll: true });
}

function move(step) {
  const known = rows();
  const at = known.findIndex((row) => name(row) === chosen);
  choose(known[Math.min(known.length - 1, Math.max(0, at < 0 ? 0 : at + step))]);
}

document.addEventListener("htmx:afterSwap", () => {
  const row = chosen && rows().find((each) => name(each) === chosen);
  if (row) row.classList.add("chosen");
});

function open() {
  const row = rows().find((each) => name(each) === chosen);
  if (row?.matches("details")) row.open = !row.open;
  else if (row) target(row)?.click();
}

const keys = {
  j: () => move(1),
  k: () => move(-1),
  o: open,
  Enter: open,
  "/": () => one("search")?.focus(),
  p: () => setPaused(!paused),
  t: turnTheme,
  g: () => document.querySelector(".brand").click(),
  f: () => document.querySelector('.failure a[href^="#turn"]')?.click(),
  "?": () => one("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (one("help").open) return;
  const act = keys[event.key];
  if (!act) return;
  if (event.key === "Enter" && event.target.matches("a, button, summary")) return;  // the browser does it
  event.preventDefault();
  act();
});
