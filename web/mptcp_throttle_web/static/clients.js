// The busiest clients of each access network; of clients that are open, also the subflows with their reasons.

import { Chart } from "./chart.js";
import { isOpen, toggleOpen } from "./choices.js";
import { byId, element, fill, keep, row, setText } from "./dom.js";
import * as format from "./format.js";
import { get } from "./server.js";

const HEAD = ["client", "sends", "receives", "cap or limit", "use", "RTT", "state", "reason"];
const CLASSES = ["", "number", "number", "", "number", "number", "", "reason"];
const HISTORY_SECONDS = 600;

function table(network) {
  const label = network.name ?? "in no access network";
  const title = element("h3", { textContent: label, id: `clients-of-${network.name}` });
  const cells = HEAD.map((text, place) => element("th", { scope: "col", textContent: text, className: CLASSES[place] }));
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...cells)), element("tbody"));
  const scroll = element("div", { className: "scroll", tabIndex: 0 }, made);
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-labelledby", title.id);
  return element("div", {}, title, scroll, element("p", { className: "dim" }));
}

function rowsOf(network) {
  return network.clients.flatMap((client) => {
    const name = `${network.name}/${client.client}`;
    const rows = [{ key: name, name, client }];
    if (isOpen(name)) {
      rows.push(...client.subflows.map((subflow, place) => ({ key: `${name}/${subflow.client_port ?? place}/${subflow.proxy}`, subflow, place })));
      rows.push({ key: `${name}/chart`, name, chart: client.client, hiddenSubflows: client.more_subflows, cap: client.rate_bps });
    }
    return rows;
  });
}

function reasonIn(direction) {
  return direction.not_enforced ? `NOT ENFORCED: ${direction.not_enforced}` : direction.reason;
}

function reasonOf({ downlink, uplink }) {
  const parts = [reasonIn(downlink)];
  if (uplink.kind) parts.push(`uplink: ${reasonIn(uplink)}`);
  return parts.join("; ");
}

function makeRow(item) {
  if (item.chart !== undefined) return chartRow(item);
  const made = row(CLASSES, item.subflow ? "subflow" : "");
  if (item.client) {
    const button = element("button", { type: "button", className: "plain", onclick: () => toggleOpen(item.name) });
    made.cells[0].append(button);
  }
  return made;
}

function updateRow(made, item) {
  if (item.chart !== undefined) {
    made.cap = item.cap;
    setText(made.querySelector(".dim"), item.hiddenSubflows ? `and ${format.count(item.hiddenSubflows, "more subflow")}` : "");
  } else if (item.client) {
    const { client } = item;
    const button = made.querySelector("button");
    setText(button, named(client.client, client.device));
    button.setAttribute("aria-expanded", String(isOpen(item.name)));
    fill(made, [
      null, format.rate(client.sent_bps), format.rate(client.received_bps), client.rate_bps ? format.rate(client.rate_bps) : "–",
      format.percent(client.throttled_bps, client.rate_bps), "", client.throttled_subflows ? `${client.throttled_subflows} throttled` : "",
      "",
    ]);
  } else {
    const { subflow } = item;
    fill(made, [
      subflow.client_port === null ? `subflow ${item.place + 1}` : `port ${subflow.client_port}`,
      format.rate(subflow.sent_bps), format.rate(subflow.received_bps), subflow.downlink.rate ?? "–",
      format.percent(subflow.sent_bps, subflow.downlink.rate_bps), format.milliseconds(subflow.rtt_ms), subflow.state, reasonOf(subflow),
    ]);
    made.cells[6].className = `state-${subflow.state}`;
  }
}

function chartRow(item) {
  const parent = element("div", { className: "chart" });
  const problem = element("p", { className: "problem" });
  const costs = element("p");
  const made = element("tr", { className: "subflow" }, element("td", { colSpan: HEAD.length }, element("p", { className: "dim" }), problem, costs, parent));
  const chart = new Chart(parent, () => `What was sent to ${item.chart} in the last 10 minutes; its present rate as a dashed line.`);
  const draw = async () => {
    if (!made.isConnected) return;
    try {
      const history = await get("/api/history", { name: item.chart, seconds: HISTORY_SECONDS });
      const now = Date.now() / 1000;
      chart.draw([{ name: item.chart, ...history, values: history.sent, cap: made.cap, colour: 0 }], now - HISTORY_SECONDS, now);
      setText(costs, `last 10 minutes: ${format.size(history.ip_sent_throttled)} sent throttled, held back for ${format.seconds(history.held_back_ms)}`);
      setText(problem, "");
    } catch (error) {
      setText(problem, error.message);
    }
    setTimeout(draw, 5000);
  };
  setTimeout(draw);
  return made;
}

// An address, and the name of its device, if it has one.
function named(address, device) {
  return device ? `${address} (${device})` : address;
}

export function showClients(top) {
  const networks = top.networks.filter((network) => network.clients.length > 0);
  keep(
    byId("client-tables"), networks, (network) => String(network.name), table,
    (made, network) => {
      keep(made.querySelector("tbody"), rowsOf(network), (item) => item.key, makeRow, updateRow);
      setText(made.querySelector(":scope > p"), network.more_clients ? `and ${format.count(network.more_clients, "more client")}` : "");
    },
  );
}

export function showDecisions(decisions) {
  const seen = new Map();
  const items = decisions.map((item) => {
    const base = `${item.at} ${item.client} ${item.client_port} ${item.direction} ${item.kind}`;
    seen.set(base, (seen.get(base) ?? 0) + 1);
    return { ...item, key: `${base} ${seen.get(base)}` };
  });
  keep(
    byId("decision-rows"), items, ({ key }) => key,
    ({ kind }) => row(["", "", "", kind ? `state-${kind}` : "", "", "reason"]),
    (made, { at, client, client_port, device, network, direction, kind, rate, reason }) => fill(made, [
      format.moment(at), named(client_port === null ? client : `${client} port ${client_port}`, device),
      network ?? "none", `${direction === "uplink" ? "uplink " : ""}${kind ?? "free"}`, rate ?? "–", reason,
    ]),
  );
}
