// The rates of all networks over time as a stack, the most expensive one at the bottom, each named at its end.

import { svg } from "./dom.js";
import { rate } from "./format.js";
import { Plot, path, text, timeAxis, valueAt, valueAxis, valueTicks } from "./plot.js";

const HEIGHT = 232;

// A column of times for several series, and a value for each: 0 where a series has no period, as nothing was carried.
function aligned(series, from) {
  const starts = series.flatMap(({ history }) => history.start);
  const times = [];
  if (starts.length) {
    const [step, last] = [series[0].history.resolution, Math.max(...starts)];
    for (let at = Math.max(Math.min(...starts), Math.ceil(from / step) * step); at <= last; at += step) times.push(at);
  }
  const columns = series.map(({ history, direction }) => {
    const values = new Map(history.start.map((at, place) => [at, history[direction][place]]));
    return times.map((at) => values.get(at) ?? 0);
  });
  return { times, columns };
}

export class Stack extends Plot {
  // `series`: {name, place, direction, history}, from the bottom upwards.
  draw(asked) {
    this.asked = asked;
    const { series, from, to } = asked;
    const { times, columns } = aligned(series, from);
    this.drawn = series.map(({ name }, number) => ({ name, start: times, values: columns[number] })).reverse();
    this.parent.dataset.points = times.length;
    const latest = this.drawn.map(({ name, values }) => `${name} ${rate(values.at(-1) ?? 0)}`).join(", ");
    this.parent.setAttribute("aria-label", `Rates of access networks over time, stacked. Latest: ${latest}. Arrow keys read out a moment.`);
    if (this.width) this.paint(series, times, columns, from, to);
  }

  paint(series, times, columns, from, to) {
    const isNarrow = this.width < 560;
    const [left, right, top, floor] = [72, this.width - (isNarrow ? 8 : 150), 10, HEIGHT - 26];
    const sums = times.map((_, place) => columns.reduce((sum, values) => sum + values[place], 0));
    const highest = Math.max(1000, ...sums) * 1.06;
    const x = (at) => left + ((at - from) / (to - from)) * (right - left);
    const y = (value) => floor - (value / highest) * (floor - top);
    const made = svg("svg", { class: "plot", width: this.width, height: HEIGHT, viewBox: `0 0 ${this.width} ${HEIGHT}`, "aria-hidden": "true" });
    made.append(
      ...valueAxis({ ticks: valueTicks(highest, 4), y, left, right, words: (value) => (value ? rate(value) : "0") }),
      ...timeAxis({ from, to, x, left, right, floor }),
    );
    let below = times.map(() => 0);
    let lowestName = Infinity;
    series.forEach((shown, number) => {
      const above = below.map((value, place) => value + columns[number][place]);
      const upper = above.map((value, place) => [x(times[place]), y(value)]);
      const lower = below.map((value, place) => [x(times[place]), y(value)]).reverse();
      const group = svg("g", { class: `net-${shown.place}` });
      if (times.length) group.append(svg("path", { class: "area strong", d: `${path(upper)}${path(lower).replace("M", "L")}Z` }), svg("path", { class: "stroke", d: path(upper) }));
      if (!isNarrow && times.length) {
        lowestName = Math.min((y(above.at(-1)) + y(below.at(-1))) / 2 + 4, lowestName - 17);
        group.append(text(right + 10, lowestName, shown.name, { class: "series-name" }));
        made.append(text(this.width - 2, lowestName, rate(columns[number].at(-1)), { class: "series-value", "text-anchor": "end" }));
      }
      made.append(group);
      below = above;
    });
    this.cursor.place(made, { left, right, from, to, top, floor, step: series[0]?.history.resolution ?? 1 });
  }

  read(at) {
    return this.drawn.map((shown) => `${shown.name} ${rate(valueAt(shown, at))}`);
  }

  clear() {
    this.asked = undefined;
    this.parent.replaceChildren();
    delete this.parent.dataset.points;
  }
}
