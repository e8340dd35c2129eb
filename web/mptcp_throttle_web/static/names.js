// Names of clients and rules, and their links.

import { element, icon } from "./dom.js";
import { rate, until, withRates } from "./format.js";
import { addressOfClient } from "./choices.js";

export function nameOf({ client, device }) {
  return device ?? client;
}

export function clientLink(client) {
  return element("a", { className: "client-link", href: addressOfClient(client.client), "data-client": client.client, textContent: nameOf(client) });
}

const ICONS = { configured: "cap", schedule: "clock", device: "cap", overflow: "overflow", budget: "budget", "by hand": "hand" };

export function ruleIcon(rule, kind = "cap") {
  if (rule === null || rule === undefined) return "open";
  return kind === "limit" && rule === "configured" ? "limit" : ICONS[rule] ?? kind ?? "open";
}

// The rule in a word; what is configured is a cap or a limit.
export function ruleWord({ rule, kind }) {
  if (kind === null) return "free";
  return rule === null || rule === "configured" ? kind : rule;
}

// Rule, reason and end of what a client has on a network.
export function why({ rule, kind, reason, until: end, not_enforced: notEnforced }) {
  const head = element("span", { className: `rule ${kind === null ? "unheld" : ""}` }, icon(ruleIcon(rule, kind)), element("span", { textContent: ruleWord({ rule, kind }) }));
  const because = notEnforced ? `not enforced: ${notEnforced}` : `${withRates(reason)}${end ? `, until ${until(end)}` : ""}`;
  return element("span", { className: "why" }, head, element("span", { className: notEnforced ? "because bad" : "because", textContent: because }));
}

export function throttledTo({ kind, rate_bps: bps }) {
  return kind === null ? "–" : rate(bps);
}
