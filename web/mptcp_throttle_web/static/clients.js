// One table of all clients. The daemon sorts, searches and filters; rows exist only for what is in view.

import { choices, choose } from "./choices.js";
import { byId, element, networkName, refill, setText } from "./dom.js";
import { count, integer, rate, wait } from "./format.js";
import { clientLink, throttledTo, why } from "./names.js";
import { ask } from "./polls.js";

const COLUMNS = [
  { key: "name", title: "Client", order: "name" }, { key: "paths", title: "Networks" }, { key: "rate", title: "Rate", order: "sent", isNumber: true },
  { key: "subflows", title: "Subflows", order: "subflows", isNumber: true }, { key: "held", title: "Throttled to", isNumber: true }, { key: "why", title: "Rule and reason" }, { key: "ms", title: "Waits", order: "held", isNumber: true },
];
const RULES = ["configured", "schedule", "device", "overflow", "budget", "by hand", "fleet", "free"];
const SPARE = 10; // rows that are drawn above and below those in view
const MOST = 200; // that the server answers at a time
const MOST_PRINTED = 1000;

let networks = [];
let answer = null;
let rows = []; // of the answer, in the order in which they are shown
let poll;

// What decides most for a client: what is not enforced, then a cap on the most expensive network, then a limit.
export function decisive(client) {
  const has = (test) => client.networks.findLast(test);
  return has(({ not_enforced: problem }) => problem) ?? has(({ kind }) => kind === "cap") ?? has(({ kind }) => kind === "limit") ?? client.networks.at(-1);
}

function paths(client) {
  const total = client.networks.reduce((sum, { sent_bps: bps }) => sum + bps, 0);
  const bar = element("span", { className: "parts", "aria-hidden": "true" });
  for (const { name, sent_bps: bps } of client.networks) {
    const part = element("span", { className: `net-${networks.findIndex((network) => network.name === name) % 6 + 1}` });
    part.style.flexGrow = String(total ? Math.max(bps / total, 0.02) : 1);
    bar.append(part);
  }
  const names = client.networks.map(({ name }) => (name === null ? element("span", { textContent: "no network" }) : networkName(name, networks)));
  return element("span", { className: "paths", title: client.networks.map(({ name, sent_bps: bps }) => `${name ?? "no network"} ${rate(bps)}`).join(", ") }, element("span", { className: "names" }, ...names), bar);
}

// Ten minutes of waiting: more than nothing stands out.
function waits({ held_back_ms: ms }) {
  return ms < 1 ? element("span", { className: "dim", textContent: "nothing" }) : element("b", { className: "warn", textContent: wait(ms) });
}

function makeRow() {
  const cells = COLUMNS.map(({ key, isNumber }) => element(key === "name" ? "th" : "td", { role: key === "name" ? "rowheader" : "cell", scope: key === "name" ? "row" : null, className: `c-${key}${isNumber ? " number" : ""}` }));
  return element("tr", { role: "row" }, ...cells);
}

function fillRow(made, client, place) {
  const rule = decisive(client);
  made.className = client.held_back_ms >= 1 ? "waits" : "";
  made.setAttribute("aria-rowindex", String(place + 2));
  made.dataset.client = client.client;
  const texts = [
    [client.client, client.device, () => [clientLink(client), client.device ? element("span", { className: "address", textContent: client.client }) : null]],
    [client.networks.map(({ name, sent_bps: bps }) => [name, bps]), null, () => paths(client)],
    [client.sent_bps, null, () => rate(client.sent_bps)], [client.subflows, null, () => integer(client.subflows)],
    [throttledTo(rule), null, () => element("span", { className: rule.kind === null ? "dim" : "", textContent: throttledTo(rule) })],
    [rule, null, () => why(rule)], [client.held_back_ms, null, () => waits(client)],
  ];
  texts.forEach(([what, more, make], cell) => {
    // Not replaced while it has the focus.
    const target = made.cells[cell];
    if (!target.contains(document.activeElement) || target.dataset.client !== client.client) refill(target, [what, more], make);
    target.dataset.client = client.client;
  });
}

const scroll = () => byId("client-scroll");

function rowHeight() {
  return Number.parseFloat(getComputedStyle(scroll()).getPropertyValue("--row"));
}

function inView() {
  const height = rowHeight();
  const first = Math.max(0, Math.floor(scroll().scrollTop / height) - SPARE);
  const last = Math.ceil((scroll().scrollTop + Math.max(scroll().clientHeight, height)) / height) + SPARE;
  return { from: first, number: Math.min(MOST, last - first) };
}

export function clientsAsked() {
  const { order, network, rule, pattern } = choices;
  return { ...inView(), order, network, rule, search: pattern };
}

function spacer(height) {
  const made = element("tr", { className: "spacer", "aria-hidden": "true" }, element("td", { colSpan: COLUMNS.length }));
  made.firstElementChild.style.height = `${height}px`;
  return made;
}

// Rows keep their places while the pointer or the focus is in the table.
function ordered(before, clients) {
  if (!scroll().matches(":hover, :focus-within")) return clients;
  const left = new Map(clients.map((client) => [client.client, client]));
  const kept = before.filter(({ client }) => left.has(client)).map(({ client }) => {
    const present = left.get(client);
    left.delete(client);
    return present;
  });
  return [...kept, ...left.values()];
}

export function showClients(given) {
  const isSamePlace = answer !== null && answer.start === given.start && answer.asked === JSON.stringify([choices.order, choices.network, choices.rule, choices.pattern]);
  answer = { ...given, asked: JSON.stringify([choices.order, choices.network, choices.rule, choices.pattern]) };
  rows = isSamePlace ? ordered(rows, given.clients) : given.clients;
  byId("clients").hidden = false;
  draw();
}

function draw() {
  const body = byId("client-rows");
  const height = rowHeight();
  const made = [...body.querySelectorAll("tr:not(.spacer)")];
  const focused = document.activeElement?.closest("tr")?.dataset.client;
  while (made.length > rows.length) made.pop().remove();
  body.querySelectorAll(".spacer").forEach((row) => row.remove());
  while (made.length < rows.length) {
    made.push(makeRow());
    body.append(made.at(-1));
  }
  rows.forEach((client, place) => fillRow(made[place], client, answer.start + place));
  if (answer.start) body.prepend(spacer(answer.start * height));
  const below = answer.matching - answer.start - rows.length;
  if (below > 0) body.append(spacer(below * height));
  if (focused !== undefined) refocus(focused);
  const table = body.closest("table");
  table.setAttribute("aria-rowcount", String(answer.matching + 1));
  const isAll = answer.matching === answer.total;
  setText(byId("clients-count"), answer.total === 0 ? "No client is connected." : isAll ? count(answer.total, "client") : `${integer(answer.matching)} of ${count(answer.total, "client")}`);
}

function refocus(client) {
  const row = [...byId("client-rows").children].find(({ dataset }) => dataset.client === client);
  if (row && !row.contains(document.activeElement)) row.querySelector("a")?.focus({ preventScroll: true });
  if (!row) scroll().focus({ preventScroll: true });
}

function showHeads() {
  COLUMNS.forEach(({ order }, place) => {
    const head = byId("client-heads").children[place];
    if (order === choices.order) head.setAttribute("aria-sort", order === "name" ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
}

export function prepareClients(itsPoll) {
  poll = itsPoll;
  for (const { key, title, order, isNumber } of COLUMNS) {
    const button = order ? element("button", { type: "button", className: "sort", textContent: title, onclick: () => choose("order", order) }) : title;
    byId("client-heads").append(element("th", { scope: "col", role: "columnheader", className: `c-${key}${isNumber ? " number" : ""}` }, button));
  }
  byId("rule").append(element("option", { value: "", textContent: "All rules" }), ...RULES.map((rule) => element("option", { value: rule, textContent: rule })));
  let later;
  scroll().addEventListener("scroll", () => {
    if (answer === null || isDrawn()) return;
    clearTimeout(later);
    later = setTimeout(() => poll.now(), 60);
  });
  showHeads();
}

function isDrawn() {
  const height = rowHeight();
  const first = scroll().scrollTop / height;
  const last = Math.min(answer.matching, (scroll().scrollTop + scroll().clientHeight) / height);
  return answer.start <= first && last <= answer.start + rows.length;
}

export function setNetworks(present) {
  networks = present;
  refill(byId("network"), present.map(({ name }) => name), () => [element("option", { value: "", textContent: "All networks" }), ...present.map(({ name }) => element("option", { value: name, textContent: name }))]);
  byId("network").value = choices.network;
}

// Another order or filter begins at its first row.
export function askClientsAgain() {
  showHeads();
  scroll().scrollTop = 0;
  poll.now();
}

export function clearClients() {
  answer = null;
  rows = [];
  byId("clients").hidden = true;
  byId("client-rows").replaceChildren();
}

// All clients that match the present search and filters, up to a bound, as a table on paper.
export async function printClients() {
  const { order, network, rule, pattern } = choices;
  const clients = [];
  let all;
  do {
    all = await ask("/api/clients", { from: clients.length, number: MOST, order, network, rule, search: pattern });
    clients.push(...all.clients);
  } while (all.clients.length === MOST && clients.length < MOST_PRINTED);
  if (choices.client !== "" || answer === null) return;
  [answer, rows] = [{ ...all, start: 0, matching: clients.length, asked: null }, clients];
  draw();
  const rest = all.matching - clients.length;
  setText(byId("clients-count"), `${count(clients.length, "client")} of ${integer(all.total)}${rest > 0 ? `; ${integer(rest)} more match, which are not printed` : ""}`);
  print();
  poll.now();
}

// Moves the focus by rows; the first time, to the first one in view.
export function step(by) {
  const links = [...byId("client-rows").querySelectorAll("a.client-link")];
  const place = links.indexOf(document.activeElement);
  const next = links[place < 0 ? 0 : Math.min(links.length - 1, Math.max(0, place + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}
