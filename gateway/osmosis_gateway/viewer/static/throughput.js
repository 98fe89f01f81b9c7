// Draws the charts of the throughput from the table of the same values, again after each update.

const HEIGHT = 150;
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const COLOURS = ["--model", "--tools"];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const boxes = [...document.querySelectorAll("#charts [data-columns]")];
let charts = [];

function columns() {
  const found = [[], [], [], [], []];
  for (const row of document.querySelectorAll("#points tbody tr"))
    [...row.children].forEach((cell, at) => found[at].push(Number(cell.dataset.value)));
  return found;
}

function data(box, all) {
  return [all[0], ...box.dataset.columns.split(" ").map((at) => all[at])];
}

function draw() {
  charts.forEach((chart) => chart.destroy());
  const all = columns();
  const short_time = all[0].length && all[0].at(-1) - all[0][0] < 20;  // labels of whole seconds would repeat
  const clock = (chart, times) => times.map((time) => new Date(time * 1000).toISOString().slice(short_time ? 14 : 11, short_time ? 21 : 19));
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule"), width: 1 } };
  charts = boxes.map((box) => new window.uPlot({
    width: box.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "throughput" }, drag: { x: false, y: false } },
    scales: { y: { range: (chart, low, high) => [0, Math.max(1, high * 1.05)] } },
    axes: [{ ...axis, values: clock, space: 80, size: 34 }, { ...axis, values: (chart, ticks) => ticks.map((tick) => short.format(tick)), size: 54, space: 26 }],
    series: [{}, ...data(box, all).slice(1).map((_, at) => ({ stroke: colour(COLOURS[at]), width: 1.5, points: { show: all[0].length < 3 } }))],
  }, data(box, all), box));
}

function update() {
  const all = columns();
  charts.forEach((chart, at) => chart.setData(data(boxes[at], all)));
}

if (boxes.length) {
  draw();
  document.body.addEventListener("htmx:sseMessage", update);
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
}
