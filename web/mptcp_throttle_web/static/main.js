// The page: one stream of answers from mptcp-throttle-web, shown by the other modules.

import { Actions } from "./actions.js";
import { bind, choices, forgetClients, onChoice } from "./choices.js";
import { showClients, showDecisions } from "./clients.js";
import { byId, setText } from "./dom.js";
import { count } from "./format.js";
import { Networks, showAttention } from "./networks.js";
import { session, Stream } from "./server.js";

const DRAW_SECONDS = { 600: 5, 3600: 30, 86400: 60, 5184000: 600 };
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

let latest = null;
let shown; // what the page shows of clients: "addresses", "names" or "nothing"
let drawing;

const actions = new Actions(connect, (text) => showText("refusal", text));
const networks = new Networks(actions);
// Without a session any more, the page must offer the log-in again.
const stream = new Stream(show, (problem) => showConnection(problem), () => actions.refresh());

// What this visitor sees of clients.
function seen() {
  if (!session.sees) return "nothing";
  return session.sees_addresses && choices.hidden !== "true" ? "addresses" : "names";
}

// Nothing stays that was shown to one who saw more, or something else.
function clear() {
  clearTimeout(drawing);
  latest = null;
  networks.clear();
  for (const id of ["attention", "client-tables", "decision-rows"]) byId(id).replaceChildren();
  for (const id of ["notice", "refusal", "chart-problem"]) showText(id, "");
  setText(byId("versions"), "");
}

function connect() {
  const before = shown;
  shown = seen();
  if (before !== shown) clear();
  if (before !== undefined && before !== shown) forgetClients();
  byId("hidden").disabled = !session.sees_addresses;
  byId("hidden").checked = choices.hidden === "true" || !session.sees_addresses;
  byId("pattern").disabled = !session.sees_addresses;
  if (!session.sees) {
    stream.close();
    showConnection("log in to see anything");
    return;
  }
  const { number, order, hidden } = choices;
  stream.open({ number, order, pattern: session.sees_addresses ? choices.pattern : "", hidden: hidden === "true" });
}

function show(answer) {
  if (answer.problem !== null) {
    showConnection(answer.problem);
    return;
  }
  const isFirst = latest === null || latest.problem;
  latest = answer;
  const { daemon, top } = answer;
  showConnection(null, top);
  showText("notice", daemon.pause === null ? "" : "Paused by the operator: nothing is throttled.");
  actions.showPause(daemon.pause !== null);
  showAttention(answer.attention);
  networks.show(top);
  showClients(top);
  showDecisions(answer.decisions);
  const page = session.version === daemon.version ? "" : `, this page ${session.version}`;
  setText(byId("versions"), `mptcp-throttled ${daemon.version}${page} on ${daemon.interfaces.join(", ")}, marks by ${daemon.marks}`);
  if (isFirst) draw();
}

function showConnection(problem, top) {
  const line = byId("connection");
  line.classList.toggle("problem", Boolean(problem));
  if (problem) {
    if (latest !== null) latest = { ...latest, problem };
    setText(line, `not up to date: ${problem}`);
  } else {
    setText(line, `live: ${count(top.connections, "connection")}`);
  }
}

function showText(id, text) {
  byId(id).hidden = text === "";
  setText(byId(id), text);
}

async function draw() {
  clearTimeout(drawing);
  const { range } = choices;
  try {
    await networks.draw();
    showText("chart-problem", "");
    document.body.dataset.drawn = range;
  } catch (error) {
    if (latest !== null) showText("chart-problem", error.message);
  }
  if (range !== choices.range || latest === null) return;
  drawing = setTimeout(draw, 1000 * (DRAW_SECONDS[choices.range] ?? 60));
}

function showTheme() {
  document.documentElement.dataset.theme = choices.theme || (darkSystem.matches ? "dark" : "light");
}

for (const name of ["hidden", "theme", "range", "direction", "pattern", "order", "number"]) bind(byId(name), name);
onChoice((name) => {
  if (["hidden", "pattern", "order", "number"].includes(name)) connect();
  if (name === "theme") showTheme();
  if (["range", "direction", "theme"].includes(name) && latest !== null) draw();
  if (name === "open" && latest?.top) showClients(latest.top);
});
// A link to a part of the page would replace the choices in its address.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("networks").focus();
});
darkSystem.addEventListener("change", () => {
  showTheme();
  if (latest !== null) draw();
});
showTheme();
actions.refresh().catch((error) => showConnection(error.message));
