// What all charts over time share: axes, a cursor with a text for the moment under it.

import { element, svg, whenSized } from "./dom.js";
import { moment, offset, tick } from "./format.js";

const STEPS = [1, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600];
const TICK_WIDTH = 84;

export const path = (points) => points.map(([x, y], place) => `${place ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

export function text(x, y, words, attributes = {}) {
  const made = svg("text", { x, y, ...attributes });
  made.textContent = words;
  return made;
}

// Round values from 0 on: 1, 2, 2.5 or 5 times a power of ten apart.
export function valueTicks(highest, most) {
  const power = 10 ** Math.floor(Math.log10(highest / most));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => highest / size <= most);
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, place) => place * step);
}

export function valueAxis({ ticks, y, left, right, words }) {
  return ticks.flatMap((value) => [
    svg("line", { class: value === 0 ? "axis" : "grid", x1: left, x2: right, y1: y(value), y2: y(value) }),
    text(left - 8, y(value) + 4, words(value), { class: "tick", "text-anchor": "end" }),
  ]);
}

export function timeAxis({ from, to, x, left, right, floor }) {
  const fits = (right - left) / TICK_WIDTH;
  const step = STEPS.find((size) => (to - from) / size <= fits) ?? STEPS.at(-1);
  const ahead = offset(from);
  const made = [];
  for (let at = Math.ceil((from + ahead) / step) * step - ahead; at <= to; at += step) {
    const place = Math.min(Math.max(x(at), left + 20), right - 16);
    made.push(text(place, floor + 18, tick(at, step), { class: "tick", "text-anchor": "middle" }));
  }
  return made;
}

// Follows the pointer, and the arrow keys while the chart has the focus. `read` gives the texts for a moment, one for
// each line. It stays at its moment when the chart is drawn again.
class Cursor {
  constructor(parent, read) {
    this.parent = parent;
    this.read = read;
    this.at = null;
    this.readout = element("div", { className: "readout", hidden: true });
    this.readout.setAttribute("aria-live", "polite");
    this.line = svg("line", { class: "cursor" });
    parent.tabIndex = 0;
    parent.setAttribute("role", "group");
    parent.addEventListener("pointermove", (event) => this.point(event.clientX - parent.getBoundingClientRect().left));
    parent.addEventListener("pointerleave", () => this.hide());
    parent.addEventListener("blur", () => this.hide());
    parent.addEventListener("keydown", (event) => this.step(event));
  }

  // `axis`: {left, right, from, to, top, floor, step}
  place(drawn, axis) {
    this.axis = axis;
    drawn.append(this.line);
    this.parent.replaceChildren(drawn, this.readout);
    this.show();
  }

  point(x) {
    if (this.axis === undefined) return;
    const { left, right, from, to, step } = this.axis;
    if (x < left || x > right) return this.hide();
    this.at = Math.round((from + ((x - left) / (right - left)) * (to - from)) / step) * step;
    this.show();
  }

  step(event) {
    if (this.axis === undefined || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    event.preventDefault();
    const { from, to, left, right } = this.axis;
    const by = Math.max(this.axis.step, ((to - from) / (right - left)) * 8) * (event.key === "ArrowLeft" ? -1 : 1);
    this.at = Math.min(to, Math.max(from, (this.at ?? to) + by));
    this.show();
  }

  hide() {
    this.at = null;
    this.show();
  }

  show() {
    const lines = this.at === null || this.at < this.axis.from ? null : this.read(this.at);
    this.readout.hidden = lines === null;
    this.line.setAttribute("visibility", lines === null ? "hidden" : "visible");
    if (lines === null) return;
    const { left, right, from, to, top, floor } = this.axis;
    const x = left + ((this.at - from) / (to - from)) * (right - left);
    for (const [name, value] of Object.entries({ x1: x, x2: x, y1: top, y2: floor })) this.line.setAttribute(name, value);
    this.readout.replaceChildren(element("b", { textContent: moment(this.at) }), ...lines.map((words) => element("span", { textContent: words })));
    this.readout.classList.toggle("left", x > (left + right) / 2);
    this.readout.style.setProperty("--x", `${x}px`);
  }
}

// The value of the period that holds a moment, from the last start before it on; null outside.
export function valueAt({ start, values }, at) {
  let low = 0;
  let high = start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low ? values[low - 1] : null;
}

// A plot that `draw` draws again whenever its `parent` changes in width; `read` tells what the cursor is at.
export class Plot {
  constructor(parent) {
    this.parent = parent;
    this.width = 0;
    this.cursor = new Cursor(parent, (at) => this.read(at));
    whenSized(parent, (width) => {
      this.width = width;
      if (this.asked) this.draw(this.asked);
    });
  }
}
