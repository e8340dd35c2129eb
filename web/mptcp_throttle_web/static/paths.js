// A client over time: a panel for each network with its own scale, with what it was throttled to as steps, and one for waiting.

import { svg } from "./dom.js";
import { rate, wait } from "./format.js";
import { Plot, path, text, timeAxis, valueAt, valueAxis, valueTicks } from "./plot.js";
import { filled } from "./sparkline.js";

const PANEL = 104;
const WAITING = 40;
const GAP = 34;
const LEFT = 72;

// What held from a moment on: the steps of a cap within the time that is shown.
function heldAt(steps, at) {
  return steps.findLast((step) => step.at <= at) ?? null;
}

function capPath(steps, from, to, x, y) {
  const held = heldAt(steps, from);
  const within = [...(held === null ? [] : [{ ...held, at: from }]), ...steps.filter(({ at }) => from < at && at <= to)];
  let made = "";
  let isDown = false; // the pen
  within.forEach(({ at, rate_bps: bps }, place) => {
    const end = x(within[place + 1]?.at ?? to);
    if (bps === null) {
      isDown = false;
      return;
    }
    made += `${isDown ? "V" : `M${x(at).toFixed(1)} `}${y(bps).toFixed(1)}H${end.toFixed(1)}`;
    isDown = true;
  });
  return made;
}

// What it waited on all networks together.
function waitingOf(rows, resolution) {
  const sums = new Map();
  for (const { history } of rows) history.start.forEach((at, place) => sums.set(at, (sums.get(at) ?? 0) + history.held[place]));
  const start = [...sums.keys()].sort((a, b) => a - b);
  return { resolution, start, held: start.map((at) => sums.get(at)) };
}

export class Paths extends Plot {
  // `rows`: {name, place, history, steps}.
  draw(asked) {
    this.asked = asked;
    const { rows, from, to } = asked;
    this.rows = rows.map((row) => ({ ...row, ...filled(row.history, "sent", from) }));
    const resolution = rows[0]?.history.resolution ?? 1;
    this.held = filled(waitingOf(rows, resolution), "held", from);
    const latest = this.rows.map(({ name, values }) => `${name} ${rate(values.at(-1) ?? 0)}`).join(", ");
    this.parent.setAttribute("aria-label", `Rates over time, by network. Latest: ${latest}. Arrow keys read out a moment.`);
    this.parent.dataset.points = Math.max(0, ...this.rows.map(({ start }) => start.length));
    if (this.width) this.paint(from, to, resolution);
  }

  paint(from, to, resolution) {
    const right = this.width - 12;
    const height = 8 + this.rows.length * (PANEL + GAP) + GAP + WAITING + 26;
    const made = svg("svg", { class: "plot", width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, "aria-hidden": "true" });
    const x = (at) => LEFT + ((at - from) / (to - from)) * (right - LEFT);
    let top = GAP - 8;
    for (const row of this.rows) {
      this.paintRow(made, row, { x, top, right, from, to });
      top += PANEL + GAP;
    }
    const floor = top + WAITING;
    const highest = Math.max(10, ...this.held.values) * 1.05;
    const y = (value) => floor - (value / highest) * WAITING;
    const width = Math.max(1.5, ((right - LEFT) * resolution) / (to - from) - 1);
    made.append(
      ...valueAxis({ ticks: valueTicks(highest, 2), y, left: LEFT, right, words: (value) => (value ? wait(value) : "0") }),
      text(LEFT, top - 8, "Waiting caused by caps", { class: "panel-title" }),
      svg("g", { class: "hours" }, ...this.held.start.flatMap((at, place) => (this.held.values[place] ? [svg("rect", { class: "bar", x: x(at), width, y: y(this.held.values[place]), height: floor - y(this.held.values[place]) })] : []))),
      ...timeAxis({ from, to, x, left: LEFT, right, floor }),
    );
    this.cursor.place(made, { left: LEFT, right, from, to, top: 12, floor, step: resolution });
  }

  paintRow(made, { name, place, start, values, steps }, { x, top, right, from, to }) {
    const floor = top + PANEL;
    const shownSteps = [heldAt(steps, from), ...steps.filter(({ at }) => from < at)].filter((step) => step !== null && step.rate_bps !== null);
    const highest = Math.max(1000, ...values, ...shownSteps.map(({ rate_bps: bps }) => bps).filter((bps) => bps < 4 * Math.max(1000, ...values))) * 1.12;
    const y = (value) => floor - (value / highest) * PANEL;
    made.append(...valueAxis({ ticks: valueTicks(highest, 3), y, left: LEFT, right, words: (value) => (value ? rate(value) : "0") }));
    const points = start.map((at, number) => [x(at), y(values[number])]);
    const group = svg("g", { class: `net-${place}` });
    if (points.length) group.append(svg("path", { class: "area", d: `${path(points)}L${points.at(-1)[0]} ${floor}L${points[0][0]} ${floor}Z` }), svg("path", { class: "stroke", d: path(points) }));
    made.append(group);
    const isInside = (value) => value <= highest;
    const inside = steps.map((step) => (step.rate_bps !== null && isInside(step.rate_bps) ? step : { ...step, rate_bps: null }));
    const line = capPath(inside, from, to, x, y);
    if (line) made.append(svg("path", { class: "cap-line", d: line }));
    const present = heldAt(steps, to);
    const title = present?.kind ? `${name}, ${present.kind} ${rate(present.rate_bps)} as the dashed line` : name;
    made.append(text(LEFT, top - 8, title, { class: "panel-title" }));
  }

  read(at) {
    const lines = this.rows.map((row) => {
      const held = heldAt(row.steps, at);
      return `${row.name} ${rate(valueAt(row, at))}${held?.kind ? `, ${held.kind} ${rate(held.rate_bps)}` : ""}`;
    });
    const ms = valueAt(this.held, at);
    return [...lines, ms === null ? "waiting –" : `waiting ${wait(ms)}`];
  }
}
