// The page of one client: what holds it and why, its paths over time, its subflows, what has happened.

import { budgetFact } from "./budgets.js";
import { choices, choose } from "./choices.js";
import { decisive } from "./clients.js";
import { byId, element, headsOf, icon, keep, networkName, placeOf, refill, rowOf, setText, toggles } from "./dom.js";
import { count, integer, milliseconds, percent, rate, size, until, wait, withRates } from "./format.js";
import { nameOf, ruleIcon, ruleWord } from "./names.js";
import { Paths } from "./paths.js";
import { ask } from "./polls.js";
import { RANGES } from "./ranges.js";
import { exportLinks } from "./exports.js";
import { merged, showDays } from "./timeline.js";

const HEADS = [["Network", ""], ["Port", "number"], ["Sends", "number"], ["Receives", "number"], ["RTT", "number"], ["State", ""], ["Throttled to", "number"], ["Reason", "reason"], ["Since", "number"]];
const CHANGED = { budget: "lowered", overflow: "raised" }; // what a rule does to the rate before it; others replace it
let actions;
let chart;
let showRange;
let latest = null;

export function prepareClient(itsActions) {
  actions = itsActions;
}

function action(word, key, act) {
  return element("button", { type: "button", "aria-keyshortcuts": key, onclick: act }, word, element("kbd", { textContent: key, "aria-hidden": "true" }));
}

function build() {
  const page = byId("client-page");
  if (page.childElementCount) return;
  const back = element("a", { className: "back", href: "#" }, icon("left"), "All clients");
  back.onclick = (event) => {
    event.preventDefault();
    choose("client", "");
  };
  const range = element("div", { className: "toggles", role: "group", "aria-label": "Time" });
  showRange = toggles(range, RANGES, (value) => choose("range", value));
  showRange(choices.range);
  const frame = element("div", { className: "chart", id: "client-chart" });
  const heads = element("tr", {}, ...headsOf(HEADS));
  page.append(
    element("div", { className: "client-head" }, element("nav", { "aria-label": "Where this page is" }, back), element("div", { className: "title-row" }, element("h1", { id: "client-name", tabIndex: -1 }), element("p", { className: "address", id: "client-addresses" }), element("div", { className: "actions change" }, action("Set rate", "r", () => setRate()), action("Add to budget", "b", () => addBudget()), action("Free for 1 h", "f", () => free()), element("button", { type: "button", textContent: "Reset rates", onclick: () => reset() }))), element("p", { className: "answer", id: "client-answer" })),
    element("dl", { className: "facts", id: "client-facts" }),
    element("div", { className: "client-grid" }, element("figure", { className: "panel" }, element("figcaption", {}, element("h2", { textContent: "Paths" }), element("div", { className: "bar" }, range, exportLinks("history", () => ({ name: choices.client, seconds: choices.range })))), element("p", { className: "problem", id: "client-chart-problem", hidden: true }), frame), element("div", { id: "ladders" })),
    element("section", { "aria-labelledby": "subflows-title" }, element("div", { className: "section-head" }, element("h2", { id: "subflows-title", textContent: "Subflows" }), element("p", { className: "dim", id: "subflows-count" })), element("div", { className: "panel table-panel scroll", tabIndex: 0, role: "region", "aria-label": "Table of subflows" }, element("table", { className: "subflows" }, element("thead", {}, heads), element("tbody", { id: "subflow-rows" })))),
    element("section", { "aria-labelledby": "history-title" }, element("div", { className: "section-head" }, element("h2", { id: "history-title", textContent: "What happened" }), element("p", { className: "dim", id: "history-since" }), exportLinks("client", () => ({ name: choices.client }))), element("div", { className: "panel", id: "client-happened" })),
  );
  chart = new Paths(frame);
}

// Its name on a network: a device has one everywhere, else it is the address that it has there. Null: it has none.
function nameOn(network) {
  const { client, explain, name } = latest.answer;
  if (explain.device !== null) return explain.device;
  const used = client?.networks.find((shown) => shown.name === network)?.client;
  return used ?? (explain.networks.find((shown) => shown.name === network)?.prefixes.length ? name : null);
}

// On the network that decides, or on one of the others.
function onNetworks() {
  const network = decisiveNetwork();
  const networks = latest.answer.explain.networks.map(({ name }) => name).filter((name) => nameOn(name) !== null);
  return { network, client: nameOn(network), networks, clientOn: nameOn };
}

export function setRate() {
  if (latest) actions.askRate(onNetworks());
}

export function free() {
  if (latest) actions.free(onNetworks());
}

function reset() {
  if (latest) actions.reset(onNetworks());
}

export function addBudget() {
  const budgets = latest?.answer.explain.networks.flatMap(({ budgets: all }) => all).filter(isOwn) ?? [];
  if (budgets.length) actions.askBudget(budgets[0]);
}

// Not the budget of a network as a whole.
function isOwn({ client, device }) {
  return client !== null || device !== null;
}

function decisiveNetwork() {
  const { client, explain } = latest.answer;
  return (client ? decisive(client).name : null) ?? explain.networks.at(-1)?.name;
}

// One sentence: to what it is held, on which network, by which rule, why, until when.
function sentence({ client, explain }, networks) {
  if (explain.paused) return [icon("pause"), element("span", { textContent: "Free: the daemon is paused." })];
  if (client === null) return [icon("away"), element("span", { textContent: "Not connected now." })];
  const rule = decisive(client);
  const end = rule.until ? ` Until ${until(rule.until)}.` : "";
  const name = rule.name === null ? "no access network" : networkName(rule.name, networks);
  const words = rule.kind === null
    ? ["Free on ", name, `: ${withRates(rule.reason)}.`]
    : ["Throttled to ", element("b", { textContent: rate(rule.rate_bps) }), " on ", name, ` ${ruleWord(rule) === "by hand" ? "" : "by "}${ruleWord(rule)}: ${rule.not_enforced ? `not enforced: ${rule.not_enforced}` : withRates(rule.reason)}.${end}`];
  return [icon(ruleIcon(rule.kind === null ? null : rule.rule, rule.kind)), element("span", {}, ...words)];
}

function facts({ client, explain }) {
  const shown = [];
  if (client) {
    shown.push({ word: "Rate now", value: rate(client.sent_bps), more: client.networks.map(({ name, sent_bps: bps }) => `${rate(bps)} ${name ?? "elsewhere"}`).join(", ") });
    shown.push({ word: "Waits because of caps", value: wait(client.held_back_ms), more: "in the last 10 minutes, over its connections" });
    shown.push({ word: "Subflows", value: integer(client.subflows), more: `${count(client.throttled_subflows, "subflow")} throttled, ${count(client.connections, "connection")}` });
  }
  const budgets = explain.networks.flatMap(({ budgets: all }) => all).filter(isOwn);
  if (budgets.length) shown.push(budgetFact(budgets.reduce((most, budget) => (budget.used / budget.amount > most.used / most.amount ? budget : most))));
  return shown.map(({ word, value, more }) => element("div", {}, element("dt", { textContent: word }), element("dd", {}, element("b", { textContent: value }), element("span", { className: "dim", textContent: more }))));
}

// The configured rate, then what each rule has made of it. The last one decides.
function ladder(network, kind, direction, steps, networks) {
  const lines = steps.map((step, place) => {
    const isLast = place === steps.length - 1;
    const ends = step.expires_at ? `, until ${until(step.expires_at)}` : "";
    return element(
      "li", { className: isLast ? "decides" : "" }, icon(ruleIcon(step.rule, kind)), element("span", { className: "rule-word", textContent: step.rule }),
      element("span", { className: "rule-text", textContent: `${step.rate_bps === null ? "unlimited" : rate(step.rate_bps)}${step.reason ? `: ${withRates(step.reason)}` : ""}${ends}` }), element("span", { className: "rule-state", textContent: isLast ? "decides" : CHANGED[steps[place + 1].rule] ?? "replaced" }),
    );
  });
  return element("div", {}, element("h3", {}, `${direction === "uplink" ? "Uplink " : ""}${kind} on `, networkName(network.name, networks)), element("ol", { className: "ladder" }, ...lines));
}

function ladders({ networks: explained }, networks) {
  const made = explained.flatMap((network) => ["downlink", "uplink"].flatMap((direction) => ["cap", "limit"].flatMap((kind) => {
    const steps = network[direction][kind];
    return steps.every(({ rate_bps: bps }) => bps === null) && steps.length < 2 ? [] : [ladder(network, kind, direction, steps, networks)];
  })));
  const title = element("h2", { textContent: "Which rule decides" });
  return element("article", { className: "panel ladder-panel" }, title, ...(made.length ? made : [element("p", { className: "dim", textContent: "No rule gives this client a rate." })]));
}

// At which proxies it has used its budgets, and what this one has of its rates. Empty for a proxy alone.
function atProxies({ networks: explained }, networks) {
  const budgets = new Map(explained.flatMap(({ budgets: all }) => all).filter((budget) => isOwn(budget) && budget.used_elsewhere).map((budget) => [JSON.stringify([budget.networks, budget.per, budget.direction, budget.every, budget.rolling]), budget]));
  const parts = [...budgets.values()].map((budget) => {
    const { word } = budgetFact(budget);
    const lines = budget.used_by_proxy.map(({ name, used }) => element("li", {}, element("span", { textContent: name }), element("span", { textContent: size(used) }), element("span", { className: "dim", textContent: percent(used, budget.used) })));
    return element("div", {}, element("h3", { textContent: word }), element("ul", { className: "parts" }, ...lines));
  });
  const leases = explained.flatMap((network) => ["downlink", "uplink"].flatMap((direction) => {
    const { fleet_part: part, cap, limit } = network[direction];
    if (part === null || part === undefined || [cap, limit].every((steps) => steps.every(({ rate_bps: bps }) => bps === null))) return [];
    return element("p", {}, "Of its shared rates on ", networkName(network.name, networks), ` for ${direction === "uplink" ? "uploads" : "downloads"}, this proxy has ${percent(part)}.`);
  }));
  if (!parts.length && !leases.length) return null;
  return element("article", { className: "panel ladder-panel" }, element("h2", { textContent: "Over several proxies" }), ...parts, ...leases);
}

function fillSubflow(row, subflow, networks) {
  const { downlink, uplink } = subflow;
  const reason = [downlink.not_enforced ? `NOT ENFORCED: ${downlink.not_enforced}` : downlink.reason, uplink.kind ? `uplink ${rate(uplink.rate_bps)}: ${uplink.not_enforced ? `NOT ENFORCED: ${uplink.not_enforced}` : uplink.reason}` : ""].filter(Boolean).join("; ");
  refill(row.cells[0], subflow.network, () => (subflow.network === null ? "none" : networkName(subflow.network, networks)));
  const texts = [subflow.client_port ?? "hidden", rate(subflow.sent_bps), rate(subflow.received_bps), milliseconds(subflow.rtt_ms), subflow.stalled ? "stalled" : subflow.state, rate(downlink.rate_bps), withRates(reason), until(subflow.opened_at)];
  texts.forEach((words, place) => setText(row.cells[place + 1], String(words)));
}

export function showClient(answer, networks) {
  build();
  latest = { answer, networks };
  const { client, explain } = answer;
  const shown = client ?? { client: answer.name, device: explain.device };
  setText(byId("client-name"), nameOf(shown));
  const addresses = explain.networks.flatMap(({ prefixes }) => prefixes).map((prefix) => prefix.replace(/(\.[0-9]+)\/32$|\/128$/, "$1")).join(" · ");
  setText(byId("client-addresses"), addresses === nameOf(shown) ? "" : addresses);
  document.title = `${nameOf(shown)} · mptcp-throttle`;
  const order = networks.map(({ name }) => name);
  refill(byId("client-answer"), [client, explain.paused, order], () => sentence(answer, networks));
  refill(byId("client-facts"), [client, explain], () => facts(answer));
  refill(byId("ladders"), [explain.networks, order], () => [ladders(explain, networks), atProxies(explain, networks)]);
  setText(byId("subflows-count"), answer.more_subflows ? `and ${count(answer.more_subflows, "more subflow")}` : "");
  keep(byId("subflow-rows"), answer.subflows, (subflow) => JSON.stringify([subflow.client, subflow.client_port, subflow.proxy, subflow.proxy_port, subflow.opened_at]), () => rowOf(HEADS), (row, subflow) => fillSubflow(row, subflow, networks));
  showDays(byId("client-happened"), merged(answer.events, answer.decisions), networks, true);
  setText(byId("history-since"), answer.decisions_since ? `decisions since ${until(answer.decisions_since)}` : "");
}

// Draws its rates over time. Does nothing before the first answer.
export async function drawClient() {
  if (latest === null) return;
  const { answer, networks } = latest;
  const asked = choices.client;
  showRange(choices.range);
  const seconds = Number(choices.range);
  const names = answer.explain.networks.map((network) => network.name).filter((network) => nameOn(network) !== null);
  try {
    const histories = await Promise.all(names.map((network) => ask("/api/history", { name: nameOn(network), network, seconds })));
    if (asked !== choices.client || latest === null) return;
    const to = Date.now() / 1000;
    const rows = names.map((network, place) => ({ name: network, place: placeOf(network, networks), history: histories[place], steps: answer.caps.find((caps) => caps.network === network)?.steps ?? [] }));
    chart.draw({ rows, from: to - seconds, to });
    byId("client-chart-problem").hidden = true;
  } catch (error) {
    if (latest === null) return;
    setText(byId("client-chart-problem"), error.message);
    byId("client-chart-problem").hidden = false;
  }
}

export function showClientProblem(problem) {
  build();
  setText(byId("client-name"), choices.client);
  refill(byId("client-answer"), problem, () => [icon("away"), element("span", { className: "problem", textContent: problem })]);
}

export function clearClient() {
  latest = null;
  document.title = "mptcp-throttle";
  byId("client-page").replaceChildren();
}
