// A rate in the last minutes, small; with what bounds it as a dashed line.

import { svg } from "./dom.js";

const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// `values` are {start, value}, from `from` on to `to`, in seconds since the epoch; `line` is {value, text} or null.
export function sparkline({ start, values, from, to, place, line, label, width, height }) {
  const top = Math.max(1000, ...values, line?.value ?? 0) * 1.12;
  const head = line ? 12 : 2.5; // above the curve; the text of the line is there
  const x = (at) => ((at - from) / (to - from)) * (width - 5) + 1;
  const y = (value) => height - 1.5 - (value / top) * (height - 1.5 - head);
  const points = start.map((at, number) => [x(at), y(values[number])]);
  const made = svg("svg", { class: `spark net-${place}`, viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (points.length) {
    const [endX, endY] = points.at(-1);
    made.append(
      svg("path", { class: "area", d: `${path(points)}L${endX} ${height}L${points[0][0]} ${height}Z` }),
      svg("path", { class: "stroke", d: path(points) }),
      svg("circle", { class: "end", cx: endX, cy: endY, r: 2 }),
    );
  }
  made.append(svg("line", { class: "axis", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }));
  if (line) {
    const text = svg("text", { class: "cap-text", x: width - 2, y: 9, "text-anchor": "end" });
    text.textContent = line.text;
    made.append(svg("line", { class: "cap-line", x1: 0, x2: width, y1: y(line.value), y2: y(line.value) }), text);
  }
  return made;
}

// Values for all times from the first to the last: 0 where a period is absent, as nothing was carried then.
export function filled(history, direction, from) {
  const step = history.resolution;
  const known = new Map(history.start.map((at, place) => [at, history[direction][place]]));
  const start = [];
  if (history.start.length) {
    const last = history.start.at(-1);
    for (let at = Math.max(history.start[0], Math.ceil(from / step) * step); at <= last; at += step) start.push(at);
  }
  return { start, values: start.map((at) => known.get(at) ?? 0) };
}
