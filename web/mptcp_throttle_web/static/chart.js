// Rates over time as a stack. A dashed line shows the cap of each network, above the networks below it in the stack.

import uPlot from "./vendor/uPlot.esm.js";
import { rate, tick } from "./format.js";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A column of times for several histories, and for each history a value per time: 0 where it has no row, since nothing
// was carried. The latest periods, which are not known yet, have no time.
function aligned(histories, from) {
  const starts = histories.flatMap((history) => history.start);
  const times = [];
  if (starts.length) {
    const [step, last] = [histories[0].resolution, Math.max(...starts)];
    for (let time = Math.max(Math.min(...starts), Math.ceil(from / step) * step); time <= last; time += step) times.push(time);
  }
  const columns = histories.map((history) => {
    const values = new Map(history.start.map((start, place) => [start, history.values[place]]));
    return times.map((time) => values.get(time) ?? 0);
  });
  return [times, columns];
}

// Draws into an element. `series`: {name, resolution, start, values, cap (bits per second or null), colour (number)}, from the
// bottom of the stack upwards. `from` and `to`, in seconds since the epoch, are the ends of the time axis.
export class Chart {
  constructor(parent, label) {
    this.parent = parent;
    this.label = label;
    new ResizeObserver(() => this.resize()).observe(parent);
  }

  draw(series, from, to) {
    const [times, columns] = aligned(series, from);
    const data = [times];
    const lines = [{}];
    const bands = [];
    let below = times.map(() => 0);
    series.forEach((line, number) => {
      const top = columns[number].map((value, place) => below[place] + value);
      const stroke = colour(`--series-${line.colour % 6}`);
      data.push(top);
      lines.push({ stroke, width: 1, fill: number === 0 ? `${stroke}66` : undefined, points: { show: false } });
      if (number > 0) bands.push({ series: [data.length - 1, line.place], fill: `${stroke}66` });
      const place = data.length - 1;
      if (line.cap != null) {
        data.push(below.map((value) => value + line.cap));
        lines.push({ stroke, width: 2, dash: [6, 4], points: { show: false } });
      }
      if (number + 1 < series.length) series[number + 1].place = place;
      below = top;
    });
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const highest = Math.max(1000, ...data.slice(1).flat());
    this.plot?.destroy();
    this.plot = new uPlot(
      {
        width: this.parent.clientWidth,
        height: this.parent.clientHeight,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { show: false } },
        scales: { x: { range: [from, to] }, y: { range: [0, highest * 1.05] } },
        axes: [{ ...axis, space: 90, values: (_, ticks, __, ___, step) => ticks.map((at) => tick(at, step)) }, { ...axis, size: 84, values: (_, ticks) => ticks.map((tick) => (tick ? rate(tick) : "0")) }],
        series: lines,
        bands,
      },
      data,
      this.parent,
    );
    const canvas = this.parent.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.label(series));
    this.parent.dataset.points = times.length;
  }

  clear() {
    this.plot?.destroy();
    this.plot = undefined;
    delete this.parent.dataset.points;
  }

  resize() {
    this.plot?.setSize({ width: this.parent.clientWidth, height: this.parent.clientHeight });
  }
}
