// What caps save, by the control group: a bar of what was carried, within what it would have been without caps.

import { byId, element, refill, setText } from "./dom.js";
import { count, percent, size } from "./format.js";

const TITLES = { today: "Today", month: "This month" };

function bar({ carried, without, saved, low, high }) {
  const most = Math.max(carried + high, without, carried);
  const label = `${size(carried)} carried, ${size(without)} without caps; with 95 % confidence ${size(carried + low)} to ${size(carried + high)}`;
  const made = element("div", { className: "saved-bar", role: "img", "aria-label": label });
  const part = (name, value) => made.style.setProperty(name, Math.max(0, value) / most);
  part("--carried", carried);
  part("--without", without);
  part("--low", carried + low);
  part("--high", carried + high);
  made.append(element("span", { className: saved > 0 ? "kept" : "kept none" }), element("span", { className: "carried" }), element("span", { className: "interval" }));
  return made;
}

function period(shown, least) {
  const { name, carried, without, saved, low, high, fraction, capped, control } = shown;
  const label = element("p", { className: "label", textContent: TITLES[name] ?? name });
  if (saved === null) {
    const fewer = Math.min(capped.connections, control.connections);
    return element("div", { className: "saved" }, label, element("p", { className: "figure" }, element("b", { textContent: "not known yet" })), element("p", { className: "dim small", textContent: `${count(fewer, "connection")} of ${least} in the smaller group. ${size(carried)} carried with caps.` }));
  }
  const isShown = low > 0;
  const figure = element("p", { className: "figure" }, element("b", { textContent: isShown ? size(saved) : "nothing shown" }), isShown ? element("span", { textContent: `${percent(fraction)} less` }) : null);
  const scale = element("p", { className: "dim small" }, element("span", { textContent: `${size(carried)} carried, ${size(without)} without caps.` }), " ", element("span", { textContent: `With 95 % confidence ${size(Math.max(0, low))} to ${size(high)} saved.` }));
  return element("div", { className: "saved" }, label, figure, bar(shown), scale);
}

export function showSaved(answer, networks) {
  const panel = byId("saved");
  panel.hidden = answer.problem !== null;
  if (panel.hidden) return;
  const names = answer.networks.length ? answer.networks.join(", ") : "networks with a cap";
  const control = answer.periods.reduce((most, { control: { connections } }) => Math.max(most, connections), 0);
  const foot = `Control group: ${percent(answer.share)} of connections, chosen at random, have no caps; ${count(control, "connection")} this month.`;
  const expensive = networks.findLastIndex(({ name }) => answer.networks.includes(name));
  panel.className = `panel net-${expensive < 0 ? 0 : (expensive % 6) + 1}`;
  setText(byId("saved-title"), `Saved on ${names}`);
  refill(byId("saved-body"), [answer, networks.map(({ name }) => name)], () => [
    element("div", { className: "saved-rows" }, ...[...answer.periods].reverse().map((shown) => period(shown, answer.min_connections))),
    element("p", { className: "dim foot", textContent: foot }),
  ]);
}
