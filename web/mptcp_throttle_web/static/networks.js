// The table of access networks, and their chart.

import { Chart } from "./chart.js";
import { choices } from "./choices.js";
import { byId, element, fill, keep, row, setText } from "./dom.js";
import * as format from "./format.js";
import { get } from "./server.js";

let shown = [];

// A rate of a network, and why it is not the configured one; "" if there is none.
function rate(network, direction, kind) {
  const { rate: present, reason, seconds_left: left } = network.rates[direction][kind];
  const text = present === null ? "" : `${present}${network.per === "network" ? "" : ` per ${network.per}`}`;
  if (reason === null) return left === null ? text : `${text || "unlimited"} (for ${format.duration(left)})`;
  return `${text || "unlimited"} (${reason}${left === null ? "" : `, for ${format.duration(left)}`})`;
}

function label({ name, proxy }) {
  return proxy ? `${name} (proxy ${proxy})` : name;
}

function uplink(network) {
  const [cap, limit] = [rate(network, "uplink", "cap"), rate(network, "uplink", "limit")];
  return [cap && `cap ${cap}`, limit && `limit ${limit}`].filter(Boolean).join(", ");
}

export class Networks {
  constructor(actions) {
    this.actions = actions;
    this.chart = new Chart(byId("network-chart"), (series) => {
      const latest = series.map(({ name, values }) => `${name} ${format.rate(values.at(-1) ?? 0)}`);
      return `Rates of access networks over time. Latest: ${latest.join(", ")}. The table above has the present ones.`;
    });
  }

  show(top) {
    shown = top.networks.filter((network) => network.name !== null);
    keep(
      byId("network-rows"), shown, (network) => network.name,
      (network) => this.makeRow(network),
      (made, network) => fill(made, [
        label(network), format.rate(network.sent_bps), format.rate(network.received_bps), rate(network, "downlink", "cap") || "–",
        rate(network, "downlink", "limit") || "–", uplink(network) || "–", String(network.subflows), String(network.throttled_subflows),
        format.size(network.totals.ip_sent_throttled), format.seconds(network.totals.held_back_ms), null,
      ]),
    );
  }

  clear() {
    shown = [];
    this.chart.clear();
    for (const id of ["network-rows", "network-legend"]) byId(id).replaceChildren();
  }

  makeRow(network) {
    const made = row(["", "number", "number", "", "", "", "number", "number", "number", "number", "change"]);
    made.cells[0].replaceWith(element("th", { scope: "row" }));
    const set = element("button", { type: "button", textContent: "set rate", onclick: () => this.actions.askRate(network.name) });
    const reset = element("button", { type: "button", textContent: "reset", onclick: () => this.actions.change("reset_rate", { network: network.name }) });
    set.setAttribute("aria-label", `set rate of ${network.name}`);
    reset.setAttribute("aria-label", `reset rates of ${network.name}`);
    made.cells[10].append(set, " ", reset);
    return made;
  }

  // The least preferred network is at the bottom of the stack: its cap is a straight line.
  async draw() {
    const seconds = Number(choices.range);
    // An answer may replace `shown` before the histories come.
    const asked = shown.map((network, colour) => ({ network, colour })).reverse();
    const histories = await Promise.all(asked.map(({ network }) => get("/api/history", { name: network.name, seconds })));
    if (shown.length === 0) return; // cleared meanwhile
    const series = asked.map(({ network, colour }, place) => ({
      name: network.name,
      start: histories[place].start,
      values: histories[place][choices.direction],
      resolution: histories[place].resolution,
      // Per client or subflow, the sum of all has no such bound.
      cap: network.per === "network" ? network.rates[choices.direction === "sent" ? "downlink" : "uplink"].cap.rate_bps : null,
      colour,
    }));
    const now = Date.now() / 1000;
    this.chart.draw(series, now - seconds, now);
    keep(
      byId("network-legend"), series, ({ name, cap, colour }) => `${name} ${cap} ${colour}`,
      ({ name, cap, colour }) => {
        const line = element("span", {}, swatch(colour, ""), element("span", { textContent: name }));
        if (cap !== null) line.append(" ", swatch(colour, "cap"), element("span", { textContent: `present cap of ${name}` }));
        return line;
      },
      () => {},
    );
  }
}

function swatch(number, kind) {
  const made = element("span", { className: `swatch ${kind}` });
  const value = `var(--series-${number % 6})`;
  if (kind === "cap") made.style.borderColor = value;
  else made.style.background = value;
  return made;
}

export function showAttention(findings) {
  const lines = findings.length ? findings : [{ subject: "", problem: "nothing", remedy: null, harm: null }];
  keep(
    byId("attention"), lines, (finding) => `${finding.harm} ${finding.subject} ${finding.problem}`,
    (finding) => element("li", { className: finding.harm === null ? "fine" : finding.harm ? "harm" : "less" }),
    (made, finding) => {
      const remedy = finding.remedy ? `; remedy: ${finding.remedy}` : "";
      // As `mptcp-throttle doctor` calls them.
      setText(made, finding.subject ? `${finding.harm ? "problem" : "note"}: ${finding.subject}: ${finding.problem}${remedy}` : finding.problem);
    },
  );
}
