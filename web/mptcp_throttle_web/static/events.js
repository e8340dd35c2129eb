// Kinds of events, and their words beside what is shown of them already. Works without a document.

import { count } from "./format.js";

export const GROUPS = [
  { name: "caps", word: "Caps", kinds: ["cap-began", "cap-ended", "overflow-raised", "overflow-lowered"] },
  { name: "budgets", word: "Budgets", kinds: ["budget-warning", "budget-stage", "budget-spent", "budget-eased", "budget-began"] },
  { name: "schedules", word: "Schedules", kinds: ["window-began", "window-ended"] },
  { name: "hand", word: "By hand", kinds: ["rate-set-by-hand", "rate-reset", "paused", "resumed"] },
  { name: "errors", word: "Errors", kinds: ["error-began", "error-ended", "configuration-refused", "fleet-away", "fleet-back"] },
  { name: "service", word: "Service", kinds: ["daemon-started", "configuration-reloaded"] },
  { name: "subflows", word: "Single subflows", kinds: ["decision"] },
];

// Kinds of a later version belong to the service.
export function groupOf(kind) {
  return GROUPS.find(({ kinds }) => kinds.includes(kind)) ?? GROUPS.find(({ name }) => name === "service");
}

// The text without the network, the client and its name, which stand beside it.
export function textOf({ network, client, device, text }) {
  const heads = network ? [network] : [];
  if (network && client) heads.unshift(`${network} ${client}`);
  if (network && client && device) heads.unshift(`${network} ${client} (${device})`);
  const head = heads.find((each) => text.startsWith(`${each}: `));
  const rest = head ? text.slice(head.length + 2) : text;
  return [": ", " any more"].reduce((shorter, after) => shorter.replace(` for ${client}${after}`, after), rest);
}

// What the text does not say: the reason, the end as `ends` has it, and how many further events it stands for.
export function moreOf({ text, reason, until, more_events: others }, ends) {
  const isSaid = !reason || text.includes(reason.replace(/^schedule /, ""));
  const end = !until || text.includes(", until ") ? "" : `until ${ends(until)}`;
  return [isSaid ? "" : reason, end, others ? `and ${count(others, "more such event")}` : ""].filter(Boolean).join("; ");
}
