// Draws the curves of a page over its steps. A click on a point opens the rollouts of its step.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let drawn = [];

function draw(chart, links, names) {
  const values = JSON.parse(chart.dataset.values);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false }, font: "11px sans-serif" };
  const rate = chart.dataset.rate === "1";
  const plot = new window.uPlot({
    width: chart.clientWidth,
    height: 150,
    padding: [8, 14, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, y: false },
    scales: { x: { time: false }, ...(rate ? { y: { range: (_, low, high) => [0, high > 0 ? Math.min(1, 1.2 * high) : 1] } } : {}) },
    axes: [
      { ...axis, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100], values: (_, ticks) => ticks.map((tick, at) => { const name = names[tick - 1] ?? ""; return at ? name : `step ${name}`; }) },
      { ...axis, size: 48, ...(rate ? { values: (_, ticks) => ticks.map((tick) => `${+(100 * tick).toFixed(1)} %`) } : {}) },
    ],
    series: [{}, { stroke: colour("--model"), width: 2, points: { show: true, size: 5 }, spanGaps: false }],
  }, [values.map((_, at) => at + 1), values], chart);
  const caption = chart.parentElement.querySelector("figcaption");
  plot.over.addEventListener("mousemove", () => {
    const at = plot.cursor.idx;
    if (at == null || values[at] == null) return;
    const value = rate ? `${(100 * values[at]).toPrecision(3)} %` : values[at].toPrecision(4);
    caption.textContent = `${chart.dataset.title}: ${value} in step ${names[at]}`;
  });
  plot.over.addEventListener("mouseleave", () => { caption.textContent = chart.dataset.title; });
  plot.over.addEventListener("click", () => {
    if (plot.cursor.idx != null) location.href = links[plot.cursor.idx];
  });
  return plot;
}

function redraw() {
  for (const plot of drawn) plot.destroy();
  drawn = [];
  const all = document.getElementById("curves");
  if (!all) return;  // there is no rollout yet
  const links = JSON.parse(all.dataset.links);
  const names = JSON.parse(all.dataset.names);
  drawn = [...all.querySelectorAll(".chart")].map((chart) => draw(chart, links, names));
}

redraw();
document.body.addEventListener("htmx:load", (event) => { if (event.detail.elt.closest?.("#curves")) redraw(); });
document.body.addEventListener("htmx:sseMessage", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  redraw();
});
