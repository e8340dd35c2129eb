// Sections that a telephone shows folded: their heads alone. On wider screens all sections are open.

import { choices, choose } from "./choices.js";
import { byId, element, icon } from "./dom.js";

const SECTIONS = ["proxies", "networks", "budgets", "week", "clients", "timeline"];

function folded() {
  return new Set(choices.folded.split(" "));
}

function write(names) {
  choose("folded", SECTIONS.filter((name) => names.has(name)).join(" ") || "none");
}

function toggle(name) {
  const names = folded();
  if (!names.delete(name)) names.add(name);
  write(names);
}

// Before the page scrolls to it.
export function unfold(name) {
  const names = folded();
  if (names.delete(name)) write(names);
}

export function prepareFolds() {
  for (const name of SECTIONS) {
    const head = byId(name).querySelector(".section-head");
    head.append(element("button", { type: "button", className: "quiet fold", "aria-label": `Section ${head.querySelector("h2").textContent}`, onclick: () => toggle(name) }, icon("fold")));
  }
  showFolds();
}

export function showFolds() {
  const names = folded();
  for (const name of SECTIONS) {
    byId(name).classList.toggle("folded", names.has(name));
    byId(name).querySelector(".fold").setAttribute("aria-expanded", String(!names.has(name)));
  }
}
