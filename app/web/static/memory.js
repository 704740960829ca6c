// The memory map: steps to the right, addresses upward, a rectangle for each buffer.
import * as echarts from "./echarts.esm.min.js";
import { make, size, swatch } from "./api.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const KINDS = ["activation", "conversion", "workspace", "library"];
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

export function drawMemory(place, memory, values) {
  const parts = (b) => (b.parts.length ? b.parts.map((p) => ({ ...p, offset: b.offset + p.offset })) : [b]);
  const drawn = (b, steps, start, width) =>
    parts(b).map((p) => ({
      buffer: b,
      steps: steps.slice(p.first, p.last + 1),
      value: [start + p.first * width, start + (p.last + 1) * width, p.offset, p.offset + p.bytes],
    }));
  const rows = memory.buffers.flatMap((b) => drawn(b, memory.steps, 0, 1));
  // What lies in a body is drawn within the step that runs it.
  for (const { buffers, steps, span } of memory.bodies || [])
    rows.push(...buffers.flatMap((b) => drawn(b, steps, span[0], (span[1] - span[0]) / Math.max(steps.length, 1))));
  const kinds = [...new Set([...KINDS.filter((k) => rows.some((r) => r.buffer.kind === k)), ...rows.map((r) => r.buffer.kind)])];
  const colour = (kind) => css(`--c${kinds.indexOf(kind) % 8}`);
  const [, ...further] = memory.memories || [];
  const top = Math.max(memory.peak_bytes, ...further.map((m) => m.start + m.peak_bytes));
  const chart = echarts.init(place, null, { renderer: "canvas" });

  const tip = ({ data }) => {
    if (!data || !data.buffer) return "";
    const { buffer, steps } = data;
    const told = buffer.values.slice(0, 4).map((v) => {
      const { layout = "", storage = "" } = values[v.name] || {};
      const shape = v.shape ? v.shape.join(" × ") || "scalar" : "unknown shape";
      return make("div", {}, make("b", {}, v.name), `${shape}, ${storage || v.dtype}${layout ? `, ${layout}` : ""}`);
    });
    if (buffer.values.length > 4) told.push(make("div", { class: "quiet" }, `and ${buffer.values.length - 4} more values`));
    const from = steps.length ? `${steps[0].op} to ${steps.at(-1).op}` : "";
    return make(
      "div",
      { class: "tip" },
      ...(told.length ? told : [make("b", {}, buffer.name)]),
      make("span", { class: "quiet" }, `${size(buffer.bytes)} at ${data.value[2]}${further.length ? ` in ${buffer.memory}` : ""}, ${steps.length ? `steps ${steps[0].index} to ${steps.at(-1).index}: ${from}` : ""}`.slice(0, 240)),
      make("span", { class: "quiet" }, buffer.reason.slice(0, 400)),
    );
  };

  const draw = () => {
    const quiet = css("--quiet"), line = css("--line"), surface = css("--raised"), text = css("--text");
    const axis = { axisLine: { lineStyle: { color: line } }, axisLabel: { color: quiet }, splitLine: { lineStyle: { color: line } }, nameTextStyle: { color: quiet } };
    chart.setOption({
      animation: !still && rows.length < 300,
      animationDuration: 250,
      grid: { left: 76, right: 20, top: 28, bottom: 74 },
      tooltip: { trigger: "item", confine: true, formatter: tip, backgroundColor: surface, borderColor: line, textStyle: { color: text }, extraCssText: "", enterable: false, transitionDuration: 0 },
      xAxis: { ...axis, type: "value", name: "step", nameLocation: "middle", nameGap: 26, min: 0, max: Math.max(memory.steps.length, 1), splitLine: { show: false }, minInterval: 1, axisLabel: { color: quiet, showMaxLabel: false } },
      yAxis: { ...axis, type: "value", min: 0, max: Math.max(Math.round(top * 1.08), 64), axisLabel: { color: quiet, formatter: size, showMaxLabel: false } },
      dataZoom: [
        { type: "inside", xAxisIndex: 0, zoomOnMouseWheel: "ctrl", moveOnMouseMove: true },
        { type: "slider", xAxisIndex: 0, height: 18, bottom: 10, borderColor: line, fillerColor: "rgba(128,140,155,.25)", textStyle: { color: quiet }, brushSelect: false, labelFormatter: (v) => String(Math.round(v)) },
      ],
      series: [
        {
          type: "custom",
          data: rows,
          encode: { x: [0, 1], y: [2, 3] },
          clip: true,
          progressive: 0,
          renderItem: (params, api) => {
            const [x, y] = api.coord([api.value(0), api.value(3)]);
            const [right, bottom] = api.coord([api.value(1), api.value(2)]);
            const shape = echarts.graphic.clipRectByRect(
              { x, y, width: Math.max(right - x, 1), height: Math.max(bottom - y, 1) },
              params.coordSys,
            );
            const fill = colour(rows[params.dataIndex].buffer.kind);
            const style = { fill, opacity: 0.78, stroke: css("--surface"), lineWidth: right - x > 4 && bottom - y > 4 ? 1 : 0 };
            return shape && { type: "rect", shape, style, emphasis: { style: { opacity: 1, stroke: text, lineWidth: 1.5 } } };
          },
          markLine: {
            silent: true,
            symbol: "none",
            animation: false,
            label: { color: text, position: "insideStartTop", textBorderColor: css("--surface"), textBorderWidth: 3 },
            data: [
              ...further.map((m) => ({ yAxis: m.start, lineStyle: { color: quiet, type: "solid", width: 1 }, label: { formatter: `${m.name} begins, ${size(m.peak_bytes)} of it in use`, position: "insideEndTop" } })),
              ...(memory.lower_bound < memory.peak_bytes
                ? [
                    { yAxis: memory.peak_bytes, lineStyle: { color: css("--bad"), type: "solid", width: 1.5 }, label: { formatter: `peak ${size(memory.peak_bytes)}` } },
                    { yAxis: memory.lower_bound, lineStyle: { color: css("--good"), type: "dashed", width: 1.5 }, label: { formatter: `lower bound ${size(memory.lower_bound)}`, position: "insideStartBottom" } },
                  ]
                : [{ yAxis: memory.peak_bytes, lineStyle: { color: css("--good"), type: "solid", width: 1.5 }, label: { formatter: `peak ${size(memory.peak_bytes)}, which is the lower bound` } }]),
            ],
          },
        },
        {
          type: "line",
          name: "live",
          step: "end",
          silent: true,
          symbol: "none",
          data: live(memory.steps),
          z: 1,
          lineStyle: { color: text, width: 1.2, opacity: 0.7 },
          tooltip: { show: false },
        },
      ],
    });
    const legend = document.getElementById("map-legend");
    legend.replaceChildren(...kinds.map((kind) => make("li", {}, swatch(colour(kind)), kind)), make("li", {}, swatch(text), "live bytes"));
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => chart.resize()).observe(place);
  place.dataset.drawn = String(rows.length);
}

const live = (steps) => [...steps.map((s) => [s.index, s.live_bytes]), ...(steps.length ? [[steps.length, steps.at(-1).live_bytes]] : [])];
