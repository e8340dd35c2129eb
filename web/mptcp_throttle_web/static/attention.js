// What needs attention, with its remedy, and the command in it to copy.

import { byId, element, icon, keep } from "./dom.js";
import { say } from "./toast.js";

function copyButton(command) {
  const button = element("button", { type: "button", className: "copy", "aria-label": `Copy ${command}` }, icon("copy"));
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(command);
      say(`Copied: ${command}`);
    } catch {
      say("This browser does not let the page copy."); // without HTTPS, on another host than this one
    }
  };
  return element("span", { className: "command" }, element("code", { textContent: command }), button);
}

// Remedies have their commands in backquotes.
function remedyOf(text) {
  const pieces = text.split("`").map((piece, place) => (place % 2 ? copyButton(piece) : piece));
  return element("p", { className: "remedy" }, ...pieces.filter((piece) => piece !== ""));
}

export function showAttention(findings) {
  const panel = byId("attention-panel");
  const hasProblem = findings.some(({ harm }) => harm);
  panel.hidden = findings.length === 0;
  panel.classList.toggle("has-problem", hasProblem);
  // Moved in the document, so that it is read where it is seen.
  const place = hasProblem ? panel.parentElement.firstElementChild : panel.parentElement.lastElementChild;
  if (place !== panel) panel.parentElement[hasProblem ? "prepend" : "append"](panel);
  keep(
    byId("attention"), findings, (finding) => JSON.stringify(finding),
    ({ subject, problem, remedy, harm }) => {
      const level = element("span", { className: `level ${harm ? "bad" : "warn"}` }, icon(harm ? "bad" : "warn"), harm ? "problem" : "note");
      return element("li", {}, element("p", {}, level, " ", element("b", { textContent: subject }), `: ${problem}`), remedy ? remedyOf(remedy) : null);
    },
    () => {},
  );
}
