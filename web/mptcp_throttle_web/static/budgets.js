// Budgets as bars. Above: the volume, with its warning mark. Below: the time of the period, with the hours in which the
// budget will be spent. Above longer than below means: too fast.

import { byId, element, icon, networkName, refill } from "./dom.js";
import { clock, count, duration, percent, size, until, withRates } from "./format.js";
import { clientLink } from "./names.js";
import { partWords } from "./proxies.js";

const EVERY = { day: "a day", week: "a week", month: "a month" };
const ROLLING = { day: "the last 24 hours", week: "the last 7 days", month: "the last 30 days" };

// Of one of the clients of a network, not of the network or of a device over several networks.
function isOfClient({ network, client }) {
  return network !== null && client !== null;
}

// Budgets of all clients of a network are shown as one: that of which the largest part is used.
function grouped(budgets) {
  const groups = new Map();
  for (const budget of budgets) {
    const key = JSON.stringify([budget.network, budget.network === null ? budget.device : null, budget.per, budget.direction, budget.every, budget.rolling, isOfClient(budget) ? budget.amount : null]);
    groups.set(key, [...(groups.get(key) ?? []), budget]);
  }
  return [...groups].map(([key, all]) => ({ key, all, first: all[0] }));
}

// What there was to use in the period, with what was added.
function whole({ amount, used, left }) {
  return left > 0 ? used + left : Math.max(amount, used);
}

function levelOf(budget) {
  if (budget.left <= 0) return "spent";
  if (budget.warn_at != null && budget.used >= budget.warn_at * whole(budget)) return "warn";
  return budget.forecast?.spent_at ? "warn" : "ok";
}

function drawBar(budget) {
  const { period, forecast, warn_at: warnAt } = budget;
  const part = (at) => Math.min(1, Math.max(0, (at - period.start) / (period.end - period.start)));
  const used = budget.used / whole(budget);
  const elapsed = part(Date.now() / 1000);
  const warns = warnAt == null ? "" : `, warning at ${percent(warnAt)}`;
  const made = element("div", { className: `budget-bar ${levelOf(budget)}`, role: "img", "aria-label": `${percent(used)} used${warns}${budget.rolling ? "" : `; ${percent(elapsed)} of the period are over`}` });
  const set = (name, value) => made.style.setProperty(name, Math.min(1, value));
  set("--used", used);
  set("--elapsed", elapsed);
  made.append(element("span", { className: "used" }));
  if (used < 1 && forecast?.spent_at) made.append(element("span", { className: "forecast" }));
  if (warnAt != null) {
    set("--warn-at", warnAt);
    made.append(element("span", { className: "warn-mark" }));
  }
  if (!budget.rolling) made.append(element("span", { className: "period" }), element("span", { className: "over" }));
  if (!budget.rolling && budget.left > 0 && forecast?.spent_at) {
    set("--spent-from", part(forecast.earliest));
    set("--spent-to", part(forecast.latest ?? period.end));
    made.append(element("span", { className: "spent-mark" }));
  }
  return made;
}

// In a forecast, null means: not before the period ends.
function forecastWords({ forecast, period, left, overdue, rolling }) {
  if (overdue) return { level: "warn", text: "Its period has ended", more: "It begins again when the clock of the host is trusted." };
  if (left <= 0) return { level: "bad", text: "Spent", more: rolling ? "It falls as old use stops counting." : `It begins again ${until(period.end)}.` };
  if (forecast == null) return null;
  const { spent_at: at, earliest, latest } = forecast;
  if (at === null) return { level: "ok", text: "Lasts until its end", more: earliest === null ? "By the use of the last days." : `By the highest use of the last days it will be spent on ${until(earliest)}.` };
  const bounds = latest === null ? `From ${until(earliest)} on; by the lowest use of the last days it lasts.` : `Between ${until(earliest)} and ${until(latest)}, by the use of the last days.`;
  return { level: "warn", text: `Will be spent on ${until(at)}`, more: bounds };
}

function rates(allowed) {
  return allowed.map(({ direction, kind, rate }) => `${direction === "uplink" ? "uplink " : ""}${kind} ${withRates(rate)}`).join(", ");
}

// What is allowed at most now, and at the next stage.
function stageWords(budget) {
  const lines = [];
  if (budget.free_window) lines.push(`Free window ${budget.free_window}: nothing is used, and no stage lowers a rate.`);
  if (budget.allowed.length) lines.push(`Now ${rates(budget.allowed)} at most.`);
  const next = budget.stages?.[budget.stages_reached];
  if (next) lines.push(`From ${percent(next.at)} on: ${rates(next.rates)}.`);
  const parts = partWords(budget);
  if (parts) lines.push(parts);
  if (budget.used_without_mptcp) lines.push(`${size(budget.used_without_mptcp)} of it without MPTCP, which is never throttled.`);
  for (const { left, until: end } of budget.added) lines.push(`${size(left)} of what was added are left${end ? `, until ${until(end)}` : ""}.`);
  return lines.join(" ");
}

function ofWhom({ all, first }) {
  const time = first.rolling ? ROLLING[first.every] : EVERY[first.every];
  const way = { down: ", to clients", up: ", from clients" }[first.direction] ?? "";
  if (first.network === null) return `${first.device ?? first.client} on ${first.networks.join(", ")}, ${time}${way}`;
  return isOfClient(first) ? `each client, ${time}${way}; ${count(all.length, "client")} used it` : `the network, ${time}${way}`;
}

// Of the clients of a budget: which have spent it, and how many are near.
function clientWords({ all, first }) {
  if (!isOfClient(first)) return [];
  const spent = all.filter(({ left }) => left <= 0);
  const near = all.filter((budget) => budget.left > 0 && levelOf(budget) === "warn").length;
  const names = spent.slice(0, 5).flatMap((budget, place) => [place ? ", " : "", clientLink(budget)]);
  const line = [];
  if (spent.length) line.push(`Spent by ${spent.length} of ${all.length}: `, ...names, spent.length > 5 ? ` and ${spent.length - 5} more. ` : ". ");
  if (near) line.push(`${near} more ${near === 1 ? "is" : "are"} near it. `);
  if (!spent.length) line.push("The bar is that of ", clientLink(first), ".");
  return line;
}

function article(group, networks, actions) {
  const budget = group.first;
  const words = forecastWords(budget);
  const left = budget.period.end - Date.now() / 1000;
  const button = (word, act) => element("button", { type: "button", className: "plain", textContent: word, "aria-label": `${word}: budget of ${budget.network ?? budget.device}`, onclick: act });
  const change = !isOfClient(budget) ? element("p", { className: "card-actions change" }, button("Add", () => actions.askBudget(budget)), button("Reset", () => actions.resetBudget(budget))) : null;
  return element(
    "article", { className: "budget" },
    element("header", {}, element("h3", {}, budget.network === null ? element("span", { textContent: "device" }) : networkName(budget.network, networks), element("span", { className: "of", textContent: ofWhom(group) })), element("p", {}, element("b", { textContent: percent(budget.used, budget.amount) }), ` ${size(budget.used)} of ${size(budget.amount)}`, element("span", { className: "dim", textContent: budget.warn_at == null ? "" : `, warns at ${percent(budget.warn_at)}` }))),
    drawBar(budget),
    element("p", { className: "bar-words dim" }, element("span", { textContent: `since ${until(budget.period.start)}` }), element("span", { textContent: budget.rolling ? "now" : `ends ${until(budget.period.end)}, in ${duration(Math.max(0, left))}` })),
    words === null ? null : element("p", { className: "forecast-words" }, element("span", { className: `level ${words.level}` }, icon(words.level), words.text), element("span", { className: "dim", textContent: words.more })),
    element("p", {}, ...clientWords(group)),
    element("p", { className: "dim", textContent: stageWords(budget) }), change,
  );
}

// Bars and times left are drawn again each minute at the latest.
export function showBudgets(answer, networks, actions) {
  byId("budgets").hidden = answer.budgets.length === 0 && !answer.problem;
  const groups = grouped(answer.budgets); // the most used first, as the daemon says them
  refill(byId("budget-list"), [answer, clock(Date.now() / 1000), networks.map(({ name }) => name)], () => [
    answer.problem ? element("p", { className: "problem budget", textContent: answer.problem }) : null,
    ...groups.map((group) => article(group, networks, actions)),
    answer.omitted ? element("p", { className: "dim budget", textContent: `And ${count(answer.omitted, "more budget")}, less used.` }) : null,
  ]);
}

export function budgetFact(budget) {
  const ends = budget.rolling ? "" : ` until ${until(budget.period.end)}`;
  const spent = budget.left <= 0 ? `spent${ends}` : `${size(budget.left)} left${ends}`;
  return { word: `Budget of ${budget.rolling ? ROLLING[budget.every] : EVERY[budget.every]} on ${budget.networks?.join(", ") ?? budget.network}`, value: percent(budget.used, budget.amount), more: spent };
}
