// Schedules as a strip of a week: a lane for each network, in the time zone of the configuration.

import { byId, element, icon, networkName, placeOf, refill } from "./dom.js";
import { clock, day, rate, shortDay, until } from "./format.js";
import { ask } from "./polls.js";

const WEEK_SECONDS = 604_800;
let start = null; // of the week that is shown; null: the present one

const bps = (rates, direction, kind) => rates[direction]?.[kind]?.rate_bps ?? null;

// What the rates of an interval are, in words.
function words({ rates, counts }) {
  const parts = [];
  for (const direction of ["downlink", "uplink"]) {
    for (const kind of ["cap", "limit"]) {
      const value = bps(rates, direction, kind);
      if (value !== null) parts.push(`${direction === "uplink" ? "uplink " : ""}${kind} ${rate(value)}`);
    }
  }
  return `${parts.join(", ") || "no cap"}${counts ? "" : ", not counted"}`;
}

function kindOf({ rates, counts }) {
  if (bps(rates, "downlink", "cap") !== null || bps(rates, "uplink", "cap") !== null) return counts ? "cap" : "cap uncounted";
  return bps(rates, "downlink", "limit") === null && bps(rates, "uplink", "limit") === null ? "free" : "limit";
}

function placed(className, from, to, week, inner = null, title = null) {
  const whole = week.end - week.start;
  const made = element("span", { className, title }, inner);
  made.style.setProperty("--from", (from - week.start) / whole);
  made.style.setProperty("--long", (to - from) / whole);
  return made;
}

function lane(shown, week, networks) {
  const windows = shown.intervals.filter(({ when }) => when !== null);
  const otherwise = shown.intervals.find(({ when }) => when === null);
  const spoken = windows.map((window) => `${shortDay(window.start)} ${clock(window.start)} to ${clock(window.end)} ${words(window)}`).join("; ");
  const made = element("div", { className: `lane net-${placeOf(shown.name, networks)}`, role: "img", "aria-label": `Windows of ${shown.name}: ${spoken || "none"}.` });
  for (const window of windows) {
    const value = bps(window.rates, "downlink", "cap") ?? bps(window.rates, "downlink", "limit");
    const isWide = (window.end - window.start) / (week.end - week.start) > 0.05;
    const inner = element("span", { textContent: isWide ? (value === null ? "free" : rate(value).replace("\u202f", " ")) : "" });
    made.append(placed(`window ${kindOf(window)}`, window.start, window.end, week, inner, `${window.when}: ${words(window)}`));
  }
  for (const { at } of week.clock_changes) made.append(placed("clocks", at, at, week));
  if (week.start <= week.now && week.now < week.end) made.append(placed("now", week.now, week.now, week));
  const name = element("p", { className: "lane-name" }, networkName(shown.name, networks), element("span", { className: "dim", textContent: otherwise ? `otherwise ${words(otherwise)}` : "" }));
  return [name, made];
}

function clockWords(week) {
  const words = ({ at, before, after }) => `${day(at)}: clocks go ${after > before ? "forward" : "back"} by ${Math.abs(after - before) / 60} minutes at ${clock(at - 1)}.`;
  if (week.clock_changes.length) return week.clock_changes.map(words).join(" ");
  return week.next_clock_change ? `No change of clocks in this week. Next: ${day(week.next_clock_change.at)}.` : "Clocks do not change here.";
}

function steps(week, show) {
  const button = (label, name, to) => element("button", { type: "button", className: "quiet step", "aria-label": label, onclick: () => go(to, show) }, icon(name));
  return [button("The week before", "left", week.start - WEEK_SECONDS / 2), button("The next week", "right", week.end + WEEK_SECONDS / 2), start === null ? null : element("button", { type: "button", className: "quiet", textContent: "This week", onclick: () => go(null, show) })];
}

async function go(to, show) {
  start = to;
  const answer = await ask("/api/week", weekAsked()).catch(() => null);
  if (answer === null) return;
  if (to !== null) start = answer.start;
  show(answer);
}

export function weekAsked() {
  return { at: start === null ? null : Math.round(start) };
}

function legend() {
  const sample = (kind, word) => element("span", {}, element("span", { className: `sample ${kind}` }), word);
  return element("p", { className: "legend" }, sample("cap", "cap"), sample("limit", "limit"), sample("free", "no cap"), sample("clocks", "clocks change"), sample("now", "now"));
}

function changes({ next }, networks) {
  if (next.length === 0) return [];
  const lines = next.slice(0, 6).map((change) => element("li", {}, element("time", { textContent: until(change.start) }), networkName(change.network, networks), element("span", { textContent: `${words(change)}${change.when ? `: ${change.when}` : ", as the window ends"}` })));
  return [element("h4", { textContent: "Next changes" }), element("ol", { className: "next" }, ...lines)];
}

export function showWeek(week, networks) {
  byId("week").hidden = week.networks.length === 0;
  if (week.networks.length === 0) return;
  const show = (answer) => showWeek(answer, networks);
  const focused = document.activeElement?.closest("#week-panel") ? document.activeElement.getAttribute("aria-label") : null;
  refill(byId("week-panel"), [week, networks.map(({ name }) => name)], () => [
    element("header", {}, element("h3", { textContent: `${shortDay(week.start)} to ${day(week.end - 3600)}` }), element("span", { className: "dim zone", textContent: week.time_zone ?? "time zone of the host" }), ...steps(week, show)),
    element("div", { className: "strip" }, element("div", { className: "days", "aria-hidden": "true" }, ...week.days.map((shown, place) => element("span", { textContent: shortDay(shown.start), className: shown.start <= week.now && week.now < (week.days[place + 1]?.start ?? week.end) ? "today" : "" }))), ...week.networks.flatMap((shown) => lane(shown, week, networks))),
    legend(), element("p", { className: "dim foot", textContent: clockWords(week) }), ...changes(week, networks),
  ]);
  if (focused) byId("week-panel").querySelector(`[aria-label="${focused}"]`)?.focus();
}
