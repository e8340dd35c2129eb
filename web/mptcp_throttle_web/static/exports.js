// What a table or chart shows, as a file.

import { element } from "./dom.js";
import { seen } from "./polls.js";
import { save } from "./server.js";
import { say } from "./toast.js";

export function exportLinks(what, parameters = () => ({})) {
  const button = (format) => element("button", {
    type: "button",
    className: "plain",
    textContent: format.toUpperCase(),
    "aria-label": `${format.toUpperCase()} of ${what}`,
    onclick: async () => {
      try {
        await save(`/api/export/${what}.${format}`, { ...parameters(), hidden: seen() === "addresses" ? null : "true" }, `mptcp-throttle-${what}.${format}`);
      } catch (error) {
        say(error.message);
      }
    },
  });
  return element("span", { className: "exports" }, button("csv"), button("json"));
}
