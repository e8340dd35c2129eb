// Elements are kept from one answer to the next, so that focus, selection and a screen reader's place stay.
// All texts are text: nothing that a client or the daemon sends becomes HTML.
// Styles change by classes and custom properties only: the page's policy refuses style attributes.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["circle", "square", "triangle", "diamond", "cross", "ring"];

export function byId(id) {
  return document.getElementById(id);
}

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.flat().filter((child) => child !== null));
  return made;
}

// Decoration: the word beside it says the same.
export function icon(name, className = "icon") {
  return svg("svg", { class: className, "aria-hidden": "true", viewBox: "0 0 16 16" }, svg("use", { href: `#i-${name}` }));
}

// The place of a network among all, by preference, as 1 to 6.
export function placeOf(network, networks) {
  const place = networks.findIndex(({ name }) => name === network);
  return place < 0 ? 0 : (place % SHAPES.length) + 1;
}

export function glyph(place) {
  if (place === 0) return null;
  const use = svg("use", { href: `#s-${SHAPES[place - 1]}` });
  return svg("svg", { class: `glyph net-${place}`, "aria-hidden": "true", viewBox: "0 0 12 12" }, use);
}

export function networkName(name, networks) {
  return element("span", { className: "network-name" }, glyph(placeOf(name, networks)), name);
}

// The heads of a table's columns, which are pairs of a title and a class.
export function headsOf(columns) {
  return columns.map(([title, className]) => element("th", { scope: "col", className, textContent: title }));
}

// An empty row with these columns; its first cell is its head.
export function rowOf(columns) {
  return element("tr", {}, ...columns.map(([, className], place) => element(place ? "td" : "th", { className, scope: place ? null : "row" })));
}

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function setClass(target, className) {
  if (target.className !== className) target.className = className;
}

// Replaces the children only if `what` differs from that of the last call: a text that says all that the children show.
export function refill(target, what, make) {
  const text = JSON.stringify(what);
  if (target.filledWith === text) return;
  target.filledWith = text;
  target.replaceChildren(...[make()].flat().filter((child) => child !== null && child !== undefined));
}

// Makes the children of `parent` those of `items`: `key` identifies an item, `make` makes its element, `update` fills it.
// An element that moves loses the focus, so the child with the focus stays and its siblings move around it. If it is
// removed, the element around it gets the focus.
export function keep(parent, items, key, make, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const name = String(key(item));
    const child = before.get(name) ?? make(item);
    child.dataset.key = name;
    before.delete(name);
    return child;
  });
  for (const child of before.values()) {
    const hadFocus = child.contains(document.activeElement);
    child.remove();
    if (hadFocus) parent.closest("[tabindex]")?.focus();
  }
  const focused = wanted.find((child) => child.contains(document.activeElement));
  let place = parent.firstElementChild;
  wanted.forEach((child, number) => {
    while (child === focused && place !== focused) {
      const next = place.nextElementSibling;
      parent.append(place);
      place = next;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, items[number]);
  });
}

// Calls `draw` with the width of `parent` whenever that changes.
export function whenSized(parent, draw) {
  let width = 0;
  new ResizeObserver(() => {
    const next = Math.floor(parent.clientWidth);
    if (next === width || next < 40) return;
    width = next;
    draw(width);
  }).observe(parent);
}

// A group of buttons of which one is pressed. `options`: pairs of value and word. Returns the group; `show` marks a value.
export function toggles(group, options, chosen) {
  const buttons = options.map(([value, word]) => {
    const button = element("button", { type: "button", textContent: word, onclick: () => chosen(value) });
    button.value = value;
    return button;
  });
  group.replaceChildren(...buttons);
  return (present) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.value === present)));
}
