// The page: one stream of answers from mptcp-throttle-web, shown by the other modules.

import { Actions } from "./actions.js";
import { bind, choices, forgetClients, onChoice } from "./choices.js";
import { showClients, showDecisions } from "./clients.js";
import { byId, setText } from "./dom.js";
import { count, moment } from "./format.js";
import { Networks, showAttention } from "./networks.js";
import { session, Stream } from "./server.js";

const SILENT_SECONDS = 5; // answers come every second; a slow daemon is asked less often
const REOPEN_SECONDS = 30;
const OLD_SECONDS = 10; // the daemon observes every second, or with a hundred thousand subflows every few seconds
const DRAW_SECONDS = { 600: 5, 3600: 30, 86400: 60, 5184000: 600 };
const darkSystem = matchMedia("(prefers-color-scheme: dark)");

let latest = null;
let isDown = false; // a problem is shown in place of the present state
let waitingSince = performance.now(); // for an answer
let answeredAt; // seconds since the epoch
let shown; // what the page shows of clients: "addresses", "names" or "nothing"
let drawing;

const actions = new Actions(connect, (text) => showText("refusal", text));
const networks = new Networks(actions);
// When the session has ended, the page must offer the log-in again.
const stream = new Stream(show, (problem) => showConnection(problem), () => actions.refresh());

// What this visitor sees of clients.
function seen() {
  if (!session.sees) return "nothing";
  return session.sees_addresses && choices.hidden !== "true" ? "addresses" : "names";
}

// Removes everything that a visitor with other rights saw.
function clear() {
  clearTimeout(drawing);
  latest = null;
  isDown = false;
  networks.clear();
  for (const id of ["attention", "client-tables", "decision-rows"]) byId(id).replaceChildren();
  for (const id of ["notice", "refusal", "chart-problem"]) showText(id, "");
  setText(byId("versions"), "");
  delete document.body.dataset.drawn;
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
    showState("problem", "log in to see anything");
    return;
  }
  waitingSince = performance.now();
  const { number, order, hidden } = choices;
  stream.open({ number, order, pattern: session.sees_addresses ? choices.pattern : "", hidden: hidden === "true" });
}

function show(answer) {
  waitingSince = performance.now();
  if (answer.problem !== null) {
    showConnection(answer.problem);
    return;
  }
  const isBack = isDown || latest === null;
  isDown = false;
  latest = answer;
  answeredAt = Date.now() / 1000;
  const { daemon, top } = answer;
  if (answer.rates_age > OLD_SECONDS) showState("problem", `not up to date: the rates are those of ${moment(top.observed_at)}`);
  else showState("", "live", `: ${count(top.connections, "connection")}`);
  showText("notice", daemon.pause === null ? "" : "Paused by the operator: nothing is throttled.");
  actions.showPause(daemon.pause !== null);
  showAttention(answer.attention);
  networks.show(top);
  showClients(top);
  showDecisions(answer.decisions);
  const page = session.version === daemon.version ? "" : `, this page ${session.version}`;
  setText(byId("versions"), `mptcp-throttled ${daemon.version}${page} on ${daemon.interfaces.join(", ")}, classes assigned by ${daemon.classifier}`);
  if (isBack) draw();
}

// The page may go on showing earlier answers.
function showConnection(problem) {
  isDown = true;
  showState("problem", `not up to date: ${problem}`);
}

// `detail` may change all the time: screen readers announce only what is before it.
function showState(kind, state, detail = "") {
  byId("connection").className = kind;
  setText(byId("connection"), state + detail);
  setText(byId("announcement"), state);
}

// A connection that has died silently, as in a tunnel, delivers neither an answer nor an error.
function checkAge() {
  const silent = (performance.now() - waitingSince) / 1000;
  if (!session.sees || silent < SILENT_SECONDS) return;
  if (!isDown) showConnection(latest === null ? "no answer" : `no answer since ${moment(answeredAt)}`);
  if (silent > REOPEN_SECONDS) connect();
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
  if (name === "open" && latest !== null) showClients(latest.top);
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
setInterval(checkAge, 1000);
actions.refresh().catch((error) => showConnection(error.message));
