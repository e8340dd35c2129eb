// The proxies of a fleet, and the part of each in what a client has used.

import { byId, element, headsOf, icon, keep, rowOf, setText } from "./dom.js";
import { count, duration, integer, rate, size } from "./format.js";

const HEADS = [["Proxy", ""], ["State", ""], ["Last heard", "number"], ["Version", ""], ["Sends", "number"], ["Receives", "number"], ["Connections", "number"], ["Throttled", "number"]];
const LEVELS = { reachable: ["ok", "ok"], late: ["warn", "warn"], gone: ["bad", "bad"] };

// A state that is at least as old as this, in seconds, is shown with its age.
const OLD = 10;

function stateOf({ state, state_age: age = 0 }) {
  return age < OLD ? state : `${state} ${duration(age)} ago`;
}

function isHeard(proxy) {
  return stateOf(proxy) === "reachable";
}

// What one that is not heard carries is not known.
function fill(row, proxy, own) {
  const [level, name] = LEVELS[proxy.state];
  setText(row.cells[0], proxy.name === own ? `${proxy.name} (this one)` : proxy.name);
  const words = stateOf(proxy);
  if (row.dataset.state !== words) row.cells[1].replaceChildren(element("span", { className: `level ${level}` }, icon(name), words));
  row.dataset.state = words;
  const carries = isHeard(proxy) ? [rate(proxy.sent_bps), rate(proxy.received_bps), integer(proxy.connections), integer(proxy.throttled)] : ["–", "–", "–", "–"];
  [`${duration(proxy.age)} ago`, proxy.version, ...carries].forEach((words, place) => setText(row.cells[place + 2], words));
}

function sum(proxies, key) {
  return proxies.filter(isHeard).reduce((total, proxy) => total + proxy[key], 0);
}

// Without a fleet, this proxy shares nothing.
export function showProxies(fleet) {
  byId("proxies").hidden = !fleet;
  if (!fleet) return;
  const { proxies, name } = fleet;
  const heads = byId("proxy-heads");
  if (!heads.childElementCount) heads.append(...headsOf(HEADS));
  const heard = proxies.filter(isHeard).length;
  setText(byId("proxies-sum"), `${heard} of ${proxies.length} in reach send ${rate(sum(proxies, "sent_bps"))}, for ${count(sum(proxies, "connections"), "connection")}`);
  keep(byId("proxy-rows"), proxies, (proxy) => proxy.name, () => rowOf(HEADS), (row, proxy) => fill(row, proxy, name));
}

// Empty if no other proxy has counted any of it.
export function partWords({ used_elsewhere: elsewhere, used_by_proxy: parts }) {
  if (!elsewhere) return "";
  const words = (parts ?? []).map(({ name, used }) => `${name} ${size(used)}`).join(", ");
  return `${size(elsewhere)} of it at other proxies${words ? `; by proxy: ${words}` : ""}.`;
}
