// The capacity of a deployment: bounds in, a choice, its curve and all configurations out.
import * as echarts from "./echarts.esm.min.js";
import { call, duration, make, show, size } from "./api.js";

const form = document.getElementById("bounds");
const problem = document.querySelector(".problem");
const waiting = document.getElementById("waiting");
const found = document.getElementById("found");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
let chart = null;
let drawn = null;

const batches = (way) => (way.batch_sizes.length ? `${way.batch_sizes.join(", ")}${way.batch_delay_ms ? ` after ${duration(way.batch_delay_ms / 1e3)}` : ""}` : "none");
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const title = (way) => `${counted(way.instances, "instance")} of ${counted(way.threads, "thread")}${way.batch_sizes.length ? `, up to ${way.batch_sizes.at(-1)} together` : ""}`;
const same = (a, b) => ["instances", "threads", "batch_delay_ms"].every((k) => a[k] === b[k]) && String(a.batch_sizes) === String(b.batch_sizes);
const number = (value) => String(Number(value.toPrecision(3)));

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { latency, percentile, memory } = Object.fromEntries(new FormData(form));
  const bounds = {
    latency: latency ? { percentile: Number(percentile), seconds: Number(latency) / 1e3 } : null,
    memory_bytes: memory ? Math.round(Number(memory) * 2 ** 20) : null,
  };
  const button = form.querySelector("button");
  problem.hidden = true;
  waiting.hidden = false;
  button.disabled = true;
  try {
    const answer = await call("POST", `/v1/jobs/${form.dataset.job}/capacity`, bounds);
    found.hidden = false;
    tellOf(answer);
    draw(answer, bounds.latency, `p${percentile}`);
  } catch (error) {
    show(problem, error);
  } finally {
    waiting.hidden = true;
    button.disabled = false;
  }
});

function tellOf({ chosen, configurations, notes, cores, seconds }) {
  const facts = [];
  const fact = (name, ...values) => facts.push(make("div", {}, make("dt", {}, name), make("dd", {}, ...values)));
  const at = ({ rate, throughput, latency }) => `${number(throughput)} answers a second where ${number(rate)} requests come, ${Object.entries(latency).map(([p, s]) => `${p} ${duration(s)}`).join(", ")}`;
  if (chosen) {
    const { deployment, predicted, loads, memory, verified } = chosen;
    const load = loads.at(-1);
    fact("Deployment", `${title(deployment)}, batches: ${batches(deployment)}`);
    fact("Predicted", at(predicted));
    fact(verified ? "Verified" : "Not verified", `${at(load)}; measured with ${load.requests} requests`);
    fact("Memory", `${size(memory.predicted_bytes)} predicted, ${size(memory.measured_bytes)} measured; weights ${size(memory.weights_bytes)} in one copy`);
    fact("Request", make("code", {}, JSON.stringify({ name: "NAME", ...deployment })));
  } else fact("Deployment", "none meets the bounds");
  fact("Machine", `${cores} cores, answered in ${duration(seconds)}`);
  document.getElementById("facts").replaceChildren(...facts);
  document.getElementById("notes").replaceChildren(...notes.map((note) => make("li", {}, note)));
  document.getElementById("rows").replaceChildren(
    ...configurations.map((row) => {
      const best = row.best;
      const cells = [String(row.instances), String(row.threads), batches(row)].map((text) => make("td", {}, text));
      const figures = best ? [number(best.throughput), duration(best.latency.p50), duration(best.latency.p99)] : ["–", "–", "–"];
      const result = row.is_chosen ? make("span", { class: "badge succeeded" }, "chosen") : row.rejection;
      return make("tr", {}, ...cells, ...[...figures, size(row.memory_bytes)].map((text) => make("td", { class: "num" }, text)), make("td", {}, row.run_times), make("td", {}, result));
    }),
  );
}

function draw({ curves, chosen }, bound, percentile) {
  const place = document.getElementById("curve");
  if (!chart) {
    chart = echarts.init(place, null, { renderer: "canvas" });
    new ResizeObserver(() => chart.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn());
  }
  const milliseconds = (point) => point.latency[percentile] * 1e3;
  drawn = () => {
    const quiet = css("--quiet"), line = css("--line"), text = css("--text");
    const axis = { axisLine: { lineStyle: { color: line } }, axisLabel: { color: quiet }, splitLine: { lineStyle: { color: line } }, nameTextStyle: { color: quiet } };
    const lines = curves.map((curve, index) => ({
      type: "line",
      name: title(curve),
      symbolSize: 6,
      color: css(`--c${index % 8}`),
      lineStyle: { width: chosen && same(curve, chosen.deployment) ? 3 : 1.5 },
      data: curve.points.map((point) => [point.throughput, milliseconds(point)]),
      markLine: index || !bound ? undefined : { silent: true, symbol: "none", label: { formatter: "bound", color: text, position: "insideStartTop" }, lineStyle: { color: css("--bad"), type: "dashed" }, data: [{ yAxis: bound.seconds * 1e3 }] },
    }));
    const measured = chosen ? [{ type: "scatter", name: "measured", symbol: "diamond", symbolSize: 14, color: text, data: chosen.loads.map((load) => [load.throughput, milliseconds(load)]) }] : [];
    chart.setOption(
      {
        animation: !still,
        animationDuration: 250,
        grid: { left: 70, right: 20, top: 72, bottom: 52 },
        legend: { type: "scroll", top: 8, textStyle: { color: text } },
        tooltip: { trigger: "item", confine: true, backgroundColor: css("--raised"), borderColor: line, textStyle: { color: text }, formatter: ({ seriesName, value }) => make("div", { class: "tip" }, make("b", {}, seriesName), `${number(value[0])} requests a second, ${percentile} ${number(value[1])} ms`) },
        xAxis: { ...axis, type: "value", name: "requests per second", nameLocation: "middle", nameGap: 28, min: 0 },
        yAxis: { ...axis, type: "log", name: `${percentile}, ms` },
        series: [...lines, ...measured],
      },
      true,
    );
    place.dataset.drawn = String(lines.length + measured.length);
  };
  drawn();
}
