// Elements are kept from one answer to the next, so that focus, selection and a screen reader's place stay.
// All texts are text: nothing that a client or the daemon sends becomes HTML.

export function byId(id) {
  return document.getElementById(id);
}

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
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

// A row of cells; `classes` has the class of each cell.
export function row(classes, rowClass = "") {
  return element("tr", { className: rowClass }, ...classes.map((name) => element("td", { className: name })));
}

export function fill(tableRow, texts) {
  texts.forEach((text, place) => {
    if (text !== null) setText(tableRow.cells[place], text);
  });
}
