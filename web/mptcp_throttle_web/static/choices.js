// The choices of the user. The address of the page has them, so that a reload, a bookmark or a link keeps them.

const DEFAULTS = { range: "600", direction: "sent", order: "sent", number: "20", pattern: "", hidden: "", theme: "", open: "" };
const listeners = [];
export const choices = inAddress();
write();

function inAddress() {
  const written = [...new URLSearchParams(location.hash.slice(1))];
  const read = { ...DEFAULTS, ...Object.fromEntries(written.filter(([name]) => Object.hasOwn(DEFAULTS, name))) };
  if (read.hidden !== "true") return read;
  return { ...read, pattern: "", open: read.open.split(" ").filter((name) => name.includes("/host-")).join(" ") };
}

// A screenshot may show the address bar: while addresses of clients are hidden, the search pattern is not in it.
function write() {
  const written = choices.hidden === "true" ? { ...choices, pattern: "" } : choices;
  const changed = Object.entries(written).filter(([name, chosen]) => chosen !== DEFAULTS[name]);
  const hash = new URLSearchParams(changed).toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname);
}

export function choose(name, value) {
  if (choices[name] === value) return;
  choices[name] = value;
  write();
  for (const listener of listeners) listener(name);
}

export function onChoice(listener) {
  listeners.push(listener);
}

// The user has changed the address.
addEventListener("hashchange", () => {
  for (const [name, value] of Object.entries(inAddress())) choose(name, value);
});

export function isOpen(client) {
  return choices.open.split(" ").includes(client);
}

export function toggleOpen(client) {
  const open = choices.open.split(" ").filter((name) => name !== "" && name !== client);
  if (!isOpen(client)) open.push(client);
  choose("open", open.slice(-8).join(" "));
}

// Called when the names of clients change, because their addresses are hidden from now on or shown again.
export function forgetClients() {
  choose("open", "");
  choose("pattern", "");
}

// Ties a select, a checkbox or a text field to a choice.
export function bind(control, name) {
  const isBox = control.type === "checkbox";
  const show = () => {
    if (isBox) control.checked = choices[name] === "true";
    else if (control.value !== choices[name]) control.value = choices[name];
  };
  let later;
  control.addEventListener(control.type === "search" ? "input" : "change", () => {
    clearTimeout(later);
    const value = isBox ? (control.checked ? "true" : "") : control.value;
    later = setTimeout(() => choose(name, value), control.type === "search" ? 300 : 0);
  });
  onChoice((changed) => {
    if (changed === name) show();
  });
  show();
}
