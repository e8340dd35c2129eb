// The choices of the user. The address of the page has them, so that a reload, a bookmark or a link keeps them.

const DEFAULTS = { client: "", range: "600", direction: "sent", order: "held", network: "", rule: "", pattern: "", kinds: "subflows", folded: "week timeline", hidden: "", theme: "" };
const listeners = [];
export const choices = inAddress();
write();

function inAddress() {
  const written = [...new URLSearchParams(location.hash.slice(1))];
  const read = { ...DEFAULTS, ...Object.fromEntries(written.filter(([name]) => Object.hasOwn(DEFAULTS, name))) };
  return read.hidden === "true" ? { ...read, pattern: "", client: read.client.startsWith("host-") ? read.client : "" } : read;
}

// A screenshot may show the address bar: while addresses of clients are hidden, the search pattern is not in it.
function hashOf(chosen) {
  const written = chosen.hidden === "true" ? { ...chosen, pattern: "" } : chosen;
  const changed = Object.entries(written).filter(([name, value]) => value !== DEFAULTS[name]);
  return new URLSearchParams(changed).toString();
}

function write(isNewPlace = false) {
  const hash = hashOf(choices);
  const address = hash ? `#${hash}` : location.pathname;
  if (isNewPlace) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

// To open in another tab, or to send.
export function addressOfClient(client) {
  return `#${hashOf({ ...DEFAULTS, client, hidden: choices.hidden })}`;
}

// Another client is another place: the browser's button "back" leaves it.
export function choose(name, value) {
  if (choices[name] === value) return;
  choices[name] = value;
  write(name === "client");
  for (const listener of listeners) listener(name);
}

export function onChoice(listener) {
  listeners.push(listener);
}

// The user has changed the address, or has gone back.
function follow() {
  if (location.hash !== "" && !isOfChoices()) return;
  const asked = inAddress();
  const changed = Object.keys(asked).filter((name) => asked[name] !== choices[name]);
  Object.assign(choices, asked);
  write();
  for (const name of changed) for (const listener of listeners) listener(name);
}

// A link to a part of the page is no choice.
function isOfChoices() {
  return [...new URLSearchParams(location.hash.slice(1)).keys()].some((name) => Object.hasOwn(DEFAULTS, name));
}

addEventListener("popstate", follow);

// Called when addresses are hidden from now on.
export function forgetAddresses() {
  if (!choices.client.startsWith("host-")) choose("client", "");
  choose("pattern", "");
}
