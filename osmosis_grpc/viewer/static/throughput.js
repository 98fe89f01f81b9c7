// Draws the charts of the throughput from the tables of the same values, again after each update.

const HEIGHT = 150;
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const COLOURS = ["--model", "--tools"];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let charts = [];

// The columns of a table: the times, and the values of each series.
function columns(id) {
  const rows = [...document.querySelectorAll(`#${id} tbody tr`)];
  return [...rows[0].children].map((_, at) => rows.map((row) => Number(row.children[at].dataset.value)));
}

function chart(box) {
  const table = box.dataset.table ?? "points", [times, ...all] = columns(table);
  const values = box.dataset.columns.split(" ").map((at) => all[at - 1]);
  const short_time = times.at(-1) - times[0] < 20;  // labels of whole seconds would repeat
  const clock = (_, ticks) => ticks.map((time) => new Date(time * 1000).toISOString().slice(short_time ? 14 : 11, short_time ? 21 : 19));
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
  return new window.uPlot({
    width: box.clientWidth,
    height: HEIGHT,
    padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: table }, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
    axes: [{ ...axis, values: clock, space: 80, size: 24 }, { ...axis, values: (_, ticks) => ticks.map((tick) => short.format(tick)), size: 44, space: 26 }],
    series: [{}, ...values.map((_, at) => ({ stroke: colour(COLOURS[at]), width: 1.5, points: { show: times.length < 3 } }))],
  }, [times, ...values], box);
}

function draw() {
  for (const each of charts) each.destroy();
  charts = [...document.querySelectorAll("#charts [data-columns]")].map(chart);
}

draw();
document.body.addEventListener("htmx:sseMessage", draw);
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
