// Says what was done. `undo` is {what, act}: a button that takes it back.

import { byId, element } from "./dom.js";

const SHOWN_MS = 8000;
let hiding;

export function say(text, undo = null) {
  const toast = byId("done");
  const button = undo === null ? null : element("button", {
    type: "button",
    textContent: "Undo",
    onclick: async () => {
      try {
        await undo.act();
        say(undo.what);
      } catch (error) {
        say(error.message);
      }
    },
  });
  toast.replaceChildren(element("span", { textContent: text }), ...(button === null ? [] : [button]));
  toast.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => hide(toast), SHOWN_MS);
}

// It stays while somebody is about to use it.
function hide(toast) {
  if (toast.matches(":hover, :focus-within")) hiding = setTimeout(() => hide(toast), 1000);
  else toast.hidden = true;
}
