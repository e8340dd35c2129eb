// What happened: events, and decisions about single subflows, with filters.

import { choices, choose } from "./choices.js";
import { byId, element, icon, keep, networkName, setText } from "./dom.js";
import { GROUPS, groupOf, moreOf, textOf } from "./events.js";
import { clock, count, day, moment, until, withRates } from "./format.js";
import { clientLink } from "./names.js";

const SHOWN = 60;
const ICONS = { caps: "cap", budgets: "budget", schedules: "clock", hand: "hand", errors: "warn", service: "service", subflows: "open" };
const WARNINGS = new Set(["budget-warning", "budget-stage", "budget-spent", "error-began", "configuration-refused"]);

let shownOf = { events: [], decisions: [], networks: [] };
let isWhole = false;

function fromDecision({ at, client, client_port: port, device, network, direction, kind, rate, reason }) {
  const way = direction === "uplink" ? "uplink " : "";
  const what = kind === null ? `${way}free` : `${way}${kind} ${rate}`;
  return { at, kind: "decision", client, device, network, text: `${port === null ? "a subflow" : `port ${port}`}: ${what}`, reason, until: null, more_events: 0 };
}

// Latest first. Two that say the same at the same moment have different keys.
export function merged(events, decisions) {
  const seen = new Map();
  return [...events, ...decisions.map(fromDecision)].sort((a, b) => b.at - a.at).map((event) => {
    const base = JSON.stringify([event.at, event.kind, event.client, event.network, event.text]);
    seen.set(base, (seen.get(base) ?? 0) + 1);
    return { ...event, key: `${base} ${seen.get(base)}` };
  });
}

export function eventRow(event, networks, isOfClient = false) {
  const group = groupOf(event.kind);
  const client = event.client && !isOfClient ? clientLink(event) : null;
  const network = event.network ? networkName(event.network, networks) : null;
  // Texts of errors may quote a line of a file.
  const [text, more] = [textOf(event), moreOf(event, until)].map((words) => (group.name === "errors" ? words : withRates(words)));
  return element(
    "li", { className: WARNINGS.has(event.kind) ? "warn" : "" }, element("time", { dateTime: new Date(event.at * 1000).toISOString(), title: moment(event.at), textContent: clock(event.at) }),
    icon(ICONS[group.name]), element("p", {}, client, client ? " " : null, network, network ? " " : null, text, more ? element("span", { className: "dim more", textContent: ` ${more}` }) : null),
    element("p", { className: "kind", textContent: group.word.toLowerCase() }),
  );
}

// A list for each day.
export function showDays(parent, events, networks, isOfClient = false) {
  const days = new Map();
  for (const event of events) days.set(day(event.at), [...(days.get(day(event.at)) ?? []), event]);
  keep(
    parent, [...days], ([name]) => name, ([name]) => element("div", { className: "happened-day" }, element("h3", { textContent: name }), element("ol", { className: "timeline" })),
    (made, [, ofDay]) => keep(made.lastElementChild, ofDay, ({ key }) => key, (event) => eventRow(event, networks, isOfClient), () => {}),
  );
}

export function prepareTimeline() {
  for (const { name, word } of GROUPS) {
    byId("kinds").append(element("button", { type: "button", textContent: word, value: name, onclick: () => {
      const off = new Set(choices.kinds.split(" ").filter(Boolean));
      if (!off.delete(name)) off.add(name);
      choose("kinds", GROUPS.filter((group) => off.has(group.name)).map((group) => group.name).join(" ") || "none");
    } }));
  }
}

export function showTimeline(changed = {}) {
  shownOf = { ...shownOf, ...changed };
  const off = new Set(choices.kinds.split(" "));
  for (const button of byId("kinds").children) button.setAttribute("aria-pressed", String(!off.has(button.value)));
  const all = merged(shownOf.events, shownOf.decisions).filter(({ kind }) => !off.has(groupOf(kind).name));
  byId("timeline").hidden = shownOf.events.length + shownOf.decisions.length === 0;
  const box = byId("happened");
  if (box.childElementCount === 0) box.append(element("div"), element("p", { className: "table-foot dim" }, element("span"), element("button", { type: "button", textContent: "Show all", onclick: () => { isWhole = true; showTimeline(); } })));
  const shown = isWhole ? all : all.slice(0, SHOWN);
  showDays(box.firstElementChild, shown, shownOf.networks);
  setText(box.querySelector(".table-foot span"), all.length === 0 ? "Nothing to show." : `${count(shown.length, "line")} of ${all.length}.`);
  box.querySelector(".table-foot button").hidden = shown.length === all.length;
}

export function clearTimeline() {
  shownOf = { events: [], decisions: [], networks: [] };
  byId("timeline").hidden = true;
  byId("happened").replaceChildren();
}
