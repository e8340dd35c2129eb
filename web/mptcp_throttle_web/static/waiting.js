// Waiting caused by caps: data that waited for a subflow that was held back.

import { clientLink, ruleWord } from "./names.js";
import { byId, element, networkName, refill, svg } from "./dom.js";
import { clock, count, rate, until, wait, withRates } from "./format.js";

// The worst client of each hour: mostly nothing, which is what it says.
function bars(hours) {
  const [width, height, floor] = [312, 64, 46];
  const step = width / hours.length;
  const highest = Math.max(1, ...hours.map(({ worst_ms: worst }) => worst));
  const worst = hours.reduce((most, hour) => (hour.worst_ms > most.worst_ms ? hour : most), hours[0]);
  const label = `The longest wait of a client by hour: ${worst.worst_ms < 1 ? "nothing in all hours" : `at most ${wait(worst.worst_ms)}, from ${clock(worst.start)} on`}.`;
  const made = svg("svg", { class: "hours", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  hours.forEach((hour, place) => {
    const isNone = hour.worst_ms < 1;
    const tall = isNone ? 1.5 : Math.max(3, (hour.worst_ms / highest) * 30);
    const drawn = svg("rect", { class: isNone ? "bar none" : "bar", x: place * step + 1, width: step - 2, y: floor - tall, height: tall });
    const title = svg("title");
    title.textContent = `${clock(hour.start)}: ${wait(hour.worst_ms)}, ${count(hour.waiting, "client")} of ${hour.clients}`;
    drawn.append(title);
    made.append(drawn);
  });
  const text = (x, y, words, className, anchor = "start") => {
    const written = svg("text", { x, y, class: className, "text-anchor": anchor });
    written.textContent = words;
    made.append(written);
  };
  if (worst.worst_ms >= 1) text(Math.max(40, (hours.indexOf(worst) + 1) * step - 1), floor - 34, wait(worst.worst_ms), "tick strong", "end");
  text(0, height - 4, clock(hours[0].start), "tick");
  text(width, height - 4, "now", "tick", "end");
  return made;
}

// Who has waited, how long, and what caps this client now.
function waiter(client, networks) {
  const { network, rate_bps: bps, rule, reason, until: end } = client;
  const why = network === null ? [" not capped now"] : [` now ${rate(bps)} on `, networkName(network, networks), `, ${ruleWord({ rule, kind: "cap" })}: ${withRates(reason)}${end ? `, until ${until(end)}` : ""}`];
  return element("li", {}, clientLink(client), " ", element("b", { className: "warn", textContent: wait(client.held_back_ms) }), element("span", { className: "dim" }, ...why));
}

export function showWaiting({ hours, clients }, networks) {
  byId("waiting").hidden = hours.length === 0;
  if (hours.length === 0) return;
  const present = hours.at(-1);
  const first = clients.filter(({ held_back_ms: held }) => held >= 1).slice(0, 3);
  refill(byId("waiting-body"), { hours, clients, networks: networks.map(({ name }) => name) }, () => [
    element("p", { className: "figure" }, element("b", { textContent: wait(present.p99_ms) }), element("span", { textContent: present.clients ? `for 99 % of ${count(present.clients, "client")} this hour` : "no client this hour" })),
    first.length
      ? element("div", {}, element("p", { textContent: "In the last hour:" }), element("ul", { className: "waiters" }, ...first.map((client) => waiter(client, networks))))
      : element("p", { className: "dim", textContent: "Nobody has waited in the last hour." }),
    bars(hours),
    element("p", { className: "dim foot", textContent: "Each bar: in one of the last 24 hours, the wait of the client that waited most, summed over its connections." }),
  ]);
}
