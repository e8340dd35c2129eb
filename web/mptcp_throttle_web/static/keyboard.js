// Single keys. None acts while a field has the focus or a dialog is open; a switch turns them off (WCAG 2.1.4).

import { choices, choose } from "./choices.js";
import { addBudget, free, setRate } from "./client.js";
import { step } from "./clients.js";
import { byId } from "./dom.js";
import { unfold } from "./folds.js";
import { session } from "./server.js";

const SWITCH = "single-keys";
const PLACES = { n: "networks", b: "budgets", w: "week", c: "clients", t: "timeline" };
const G_MS = 1500;
let pressedG = -Infinity;

function isOn() {
  return byId("single-keys").checked;
}

function remember(isChecked) {
  try {
    localStorage.setItem(SWITCH, String(isChecked));
  } catch {
    // without storage it holds until the page is closed
  }
}

function remembered() {
  try {
    return localStorage.getItem(SWITCH) !== "false";
  } catch {
    return true;
  }
}

export function goTo(id) {
  const target = byId(id);
  if (target === null || target.hidden) return;
  unfold(id);
  target.scrollIntoView({ block: "start" });
  target.focus({ preventScroll: true });
}

function press(key) {
  if (performance.now() - pressedG < G_MS && PLACES[key]) {
    pressedG = -Infinity;
    choose("client", "");
    goTo(PLACES[key]);
    return true;
  }
  if (choices.client !== "" && session.may_change) {
    const act = { r: setRate, b: addBudget, f: free }[key];
    if (act) {
      act();
      return true;
    }
  }
  switch (key) {
    case "g":
      pressedG = performance.now();
      return true;
    case "/":
      choose("client", "");
      byId("pattern").focus();
      return true;
    case "j":
    case "k":
      step(key === "j" ? 1 : -1);
      return true;
    case "a":
      if (!byId("hidden").disabled) byId("hidden").click();
      return true;
    case "?":
      byId("keys").showModal();
      return true;
  }
  return false;
}

export function prepareKeyboard() {
  byId("single-keys").checked = remembered();
  byId("single-keys").addEventListener("change", () => remember(isOn()));
  byId("show-keys").addEventListener("click", () => byId("keys").showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    // A dialog that has just closed may keep the focus for a moment.
    const isField = event.target.closest?.("input, select, textarea") && !event.target.closest("dialog");
    if (event.key === "Escape") {
      if (isField) {
        event.preventDefault(); // a search field would lose its text
        event.target.blur();
      } else choose("client", "");
    }
    if (!isField && isOn() && press(event.key)) event.preventDefault();
  });
}
