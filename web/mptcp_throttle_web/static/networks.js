// Access networks as cards, from preferred to expensive, and the chart of all of them.

import { choices } from "./choices.js";
import { byId, element, glyph, icon, keep, placeOf, refill, setText } from "./dom.js";
import { count, duration, integer, rate, until, withRates } from "./format.js";
import { ruleIcon } from "./names.js";
import { ask } from "./polls.js";
import { filled, sparkline } from "./sparkline.js";
import { Stack } from "./stack.js";

const CARD_SECONDS = 600;
let shown = [];
const recent = new Map(); // histories of the last ten minutes, by network
let stack;

function label({ name, proxy }) {
  return proxy ? `${name} (proxy ${proxy})` : name;
}

function boundsOf(healthy) {
  return Object.entries(healthy).filter(([, bound]) => bound !== null).map(([figure, bound]) => `${figure} ${bound}`);
}

// The rates that hold for a network, each with what has decided it and until when.
function rulesOf({ rates, per, healthy }) {
  const lines = [];
  for (const [direction, before] of [["downlink", ""], ["uplink", "uplink "]]) {
    for (const kind of ["cap", "limit"]) {
      const { rate: present, rate_bps: bps, rule, reason, expires_at: end, seconds_left: left } = rates[direction][kind];
      if (present === null && reason === null) continue;
      const what = bps === null ? `no ${before}${kind}` : `${before}${kind} ${rate(bps)}${per === "network" ? " for the network" : ` per ${per}`}`;
      const ends = left === null ? "" : end === null ? `, for ${duration(left)}` : `, until ${until(end)}`;
      lines.push({ icon: ruleIcon(rule, kind), text: what, more: `${withRates(reason ?? "configured")}${ends}` });
    }
  }
  if (lines.length === 0) lines.push({ icon: "open", text: "no cap and no limit", more: null });
  const bounds = boundsOf(healthy);
  if (bounds.length) lines.push({ icon: "sick", text: `bounds of health: ${withRates(bounds.join(", "))}`, more: null });
  return lines;
}

function ruleLine({ icon: name, text, more, level }) {
  return element("li", { className: level ?? "" }, icon(name), element("span", {}, text, more ? element("span", { className: "dim more", textContent: more }) : null));
}

// Null without a bound: then nothing is known of its health.
function healthOf({ sick, healthy }) {
  if (boundsOf(healthy).length === 0) return null;
  if (sick.length === 0) return { level: "ok", word: "healthy", lines: [] };
  const lines = sick.map(({ text, subflows }) => ({ icon: "sick", level: "warn", text: `${withRates(text)} on ${count(subflows, "subflow")}`, more: null }));
  return { level: "warn", word: "sick", lines };
}

// A cap per client bounds no sum of clients; only what holds for the network is a line.
function lineOf({ per, rates }) {
  const { cap, limit } = rates[choices.direction === "sent" ? "downlink" : "uplink"];
  const [kind, { rate_bps: value }] = cap.rate_bps !== null ? ["cap", cap] : ["limit", limit];
  return per === "network" && value !== null ? { value, text: `${kind} ${rate(value)}` } : null;
}

export class Networks {
  constructor(actions) {
    this.actions = actions;
    stack = new Stack(byId("network-chart"));
    new ResizeObserver(() => this.drawRecent()).observe(byId("cards"));
  }

  show(networks) {
    shown = networks;
    byId("networks").hidden = false;
    keep(byId("cards"), networks, ({ name }) => name, (network) => this.make(network), (card, network) => this.fill(card, network));
  }

  make(network) {
    const button = (word, act, name) => element("button", { type: "button", className: "plain", textContent: word, "aria-label": `${word} of ${network.name}`, "data-action": name, onclick: act });
    const actions = element(
      "p", { className: "card-actions change" }, button("Set rate", () => this.actions.askRate({ network: network.name, client: null }), "set"),
      button("Free for 1 h", () => this.actions.free({ network: network.name, client: null }), "free"), button("Reset rates", () => this.actions.reset({ network: network.name, client: null }), "reset"),
    );
    return element(
      "article", { className: "panel card", "aria-label": network.name },
      element("header", {}, element("h3"), element("span", { className: "health" })),
      element("p", { className: "figure" }, element("b", { className: "sends" }), element("span", { className: "receives" })),
      element("div", { className: "card-spark" }), element("ul", { className: "rules" }), element("dl", { className: "counts" }), actions,
    );
  }

  fill(card, network) {
    const place = placeOf(network.name, shown);
    card.className = `panel card net-${place}`;
    const part = (selector) => card.querySelector(selector);
    refill(part("h3"), [label(network), place], () => [glyph(place), label(network)]);
    const health = healthOf(network);
    refill(part(".health"), health, () => (health === null ? [] : [icon(health.level === "ok" ? "ok" : "sick"), health.word]));
    part(".health").className = `health level ${health?.level ?? ""}`;
    setText(part(".sends"), rate(network.sent_bps));
    setText(part(".receives"), `${rate(network.received_bps)} from clients`);
    const lines = [...rulesOf(network), ...(health?.lines ?? [])];
    refill(part(".rules"), lines, () => lines.map(ruleLine));
    const counts = [["clients", network.client_count], ["subflows", network.subflows], ["throttled", network.throttled_subflows]];
    refill(part(".counts"), counts, () => counts.map(([word, number]) => element("div", {}, element("dd", { textContent: integer(number) }), element("dt", { textContent: word }))));
  }

  drawRecent() {
    const to = Date.now() / 1000;
    for (const network of shown) {
      const card = [...byId("cards").children].find(({ dataset }) => dataset.key === network.name);
      const history = recent.get(network.name);
      const parent = card?.querySelector(".card-spark");
      if (!parent || history === undefined || parent.clientWidth < 40) continue;
      const label = `Rate of ${network.name} in the last ten minutes, now ${rate(network.sent_bps)}`;
      parent.replaceChildren(sparkline({ ...filled(history, choices.direction, to - CARD_SECONDS), from: to - CARD_SECONDS, to, place: placeOf(network.name, shown), line: lineOf(network), label, width: parent.clientWidth, height: 44 }));
    }
  }

  // Raises an error if the daemon refuses.
  async load() {
    const seconds = Number(choices.range);
    const asked = shown;
    const histories = (range) => Promise.all(asked.map(({ name }) => ask("/api/history", { name, seconds: range })));
    const short = await histories(CARD_SECONDS);
    const long = seconds === CARD_SECONDS ? short : await histories(seconds);
    if (shown.length === 0) return; // cleared meanwhile
    asked.forEach(({ name }, number) => recent.set(name, short[number]));
    this.drawRecent();
    const series = asked.map(({ name }, number) => ({ name, place: placeOf(name, asked), direction: choices.direction, history: long[number] })).reverse();
    const to = Date.now() / 1000;
    stack.draw({ series, from: to - seconds, to });
  }

  clear() {
    shown = [];
    recent.clear();
    stack.clear();
    byId("cards").replaceChildren();
    byId("networks").hidden = true;
  }
}
