// The page: a stream of answers from mptcp-throttle-web, and questions about what is in view, shown by the other modules.

import { Actions } from "./actions.js";
import { showAttention } from "./attention.js";
import { showBudgets } from "./budgets.js";
import { choices, choose, forgetAddresses, onChoice } from "./choices.js";
import { clearClient, drawClient, prepareClient, showClient, showClientProblem } from "./client.js";
import { askClientsAgain, clearClients, clientsAsked, prepareClients, printClients, setNetworks, showClients } from "./clients.js";
import { byId, element, setText, toggles } from "./dom.js";
import { exportLinks } from "./exports.js";
import { prepareFolds, showFolds } from "./folds.js";
import { count, moment, setZone } from "./format.js";
import { goTo, prepareKeyboard } from "./keyboard.js";
import { Networks } from "./networks.js";
import { Poll, seen } from "./polls.js";
import { showProxies } from "./proxies.js";
import { DIRECTIONS, DRAW_SECONDS, RANGES } from "./ranges.js";
import { showSaved } from "./saved.js";
import { session, Stream } from "./server.js";
import { clearTimeline, prepareTimeline, showTimeline } from "./timeline.js";
import { say } from "./toast.js";
import { showAway, showVerdict } from "./verdict.js";
import { showWaiting } from "./waiting.js";
import { showWeek, weekAsked } from "./week.js";

const SILENT_SECONDS = 5; // answers come every second; a slow daemon is asked less often
const REOPEN_SECONDS = 30;
const OLD_SECONDS = 10; // the daemon observes every second, or with a hundred thousand subflows every few seconds
const THEMES = { "": "as the system", light: "light", dark: "dark" };

let latest = null;
let isDown = false; // a problem is shown in place of the present state
let waitingSince = performance.now(); // for an answer
let answeredAt; // seconds since the epoch
let shown; // what the page shows of clients: "addresses", "names" or "nothing"
let drawing;

const present = () => latest?.networks ?? [];
const actions = new Actions({ sessionChanged: connect, showProblem: (text) => showText("refusal", text), changed: askAgain, present });
const networks = new Networks(actions);
// When the session has ended, the page must offer the log-in again.
const stream = new Stream(show, (problem) => showConnection(problem), () => actions.refresh());
const isOverview = () => choices.client === "";

const polls = {
  saved: new Poll({ path: "/api/saved", seconds: 60, target: byId("saved"), show: (answer) => showSaved(answer, present()) }),
  waiting: new Poll({ path: "/api/waiting", seconds: 60, target: byId("waiting"), show: (answer) => showWaiting(answer, present()) }),
  budgets: new Poll({ path: "/api/budgets", seconds: 5, target: byId("budgets"), show: (answer) => showPlan(() => showBudgets(answer, present(), actions)) }),
  week: new Poll({ path: "/api/week", seconds: 60, target: byId("week"), parameters: weekAsked, show: (answer) => showPlan(() => showWeek(answer, present())) }),
  clients: new Poll({ path: "/api/clients", seconds: 2, target: byId("clients"), parameters: clientsAsked, show: showClients }),
  timeline: new Poll({ path: "/api/timeline", seconds: 5, target: byId("timeline"), show: ({ events }) => showTimeline({ events, networks: present() }) }),
};
const clientPoll = new Poll({
  path: "/api/client",
  seconds: 2,
  target: byId("client-page"),
  parameters: () => ({ name: choices.client }),
  show: (answer) => {
    const isFirst = byId("client-facts") === null;
    showClient(answer, present());
    if (isFirst) draw();
  },
  fail: (error) => showClientProblem(error.message),
});

function showPlan(fill) {
  fill();
  byId("plans").hidden = byId("budgets").hidden && byId("week").hidden;
}

// Removes everything that a visitor with other rights saw.
function clear() {
  clearTimeout(drawing);
  latest = null;
  isDown = false;
  networks.clear();
  clearClients();
  clearClient();
  clearTimeline();
  for (const id of ["attention", "saved-body", "waiting-body", "budget-list", "week-panel", "proxy-rows"]) {
    byId(id).replaceChildren();
    delete byId(id).filledWith;
  }
  for (const id of ["saved", "waiting", "attention-panel", "answers", "plans", "budgets", "week", "proxies"]) byId(id).hidden = true;
  for (const id of ["refusal", "chart-problem"]) showText(id, "");
  setText(byId("versions"), "");
  delete document.body.dataset.drawn;
}

function connect() {
  const before = shown;
  shown = seen();
  if (before !== shown) clear();
  if (before === "addresses" && before !== shown) forgetAddresses();
  showHidden();
  byId("pattern").disabled = !session.sees_addresses;
  stopPolls();
  if (!session.sees) {
    stream.close();
    showAway("Log in to see anything", ["This page shows nothing before a log-in."]);
    showState("problem", "log in to see anything");
    return;
  }
  waitingSince = performance.now();
  stream.open({ hidden: shown === "addresses" ? null : "true" });
}

function showHidden() {
  const isHidden = shown !== "addresses";
  byId("hidden").disabled = !session.sees_addresses;
  byId("hidden").setAttribute("aria-pressed", String(isHidden));
}

function stopPolls() {
  for (const poll of [...Object.values(polls), clientPoll]) poll.stop();
}

function startPolls() {
  stopPolls();
  for (const poll of isOverview() ? Object.values(polls) : [clientPoll]) poll.start();
}

// After a change, what it has changed is there at once.
function askAgain() {
  for (const poll of [...Object.values(polls), clientPoll]) poll.now();
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
  const { daemon } = answer;
  setZone(daemon.time_zone);
  if (answer.rates_age > OLD_SECONDS) showState("problem", `not up to date: the rates are those of ${moment(daemon.observed_at ?? answeredAt - answer.rates_age)}`);
  else showState("live", "live", `: ${count(answer.clients, "client")}`);
  actions.showLive(true);
  actions.showPause(daemon.pause !== null);
  byId("answers").hidden = false;
  showVerdict(answer);
  showAttention(answer.attention);
  showProxies(daemon.fleet);
  networks.show(answer.networks);
  setNetworks(answer.networks);
  if (isOverview()) showTimeline({ decisions: answer.decisions, networks: answer.networks });
  const page = session.version === daemon.version ? "" : `, this page ${session.version}`;
  const zone = daemon.time_zone ? ` · times are those of ${daemon.time_zone}` : "";
  setText(byId("versions"), `mptcp-throttled ${daemon.version}${page} on ${daemon.interfaces.join(", ")} · classes assigned by ${daemon.classifier}${zone}`);
  if (isBack) {
    startPolls();
    draw();
  }
}

// The page goes on showing earlier answers, if there are any.
function showConnection(problem) {
  isDown = true;
  stopPolls();
  showState("problem", `not up to date: ${problem}`);
  actions.showLive(false);
  const isOfDaemon = !/^(mptcp-throttle-web|no answer)/.test(problem);
  const title = isOfDaemon ? "The daemon does not answer" : "mptcp-throttle-web does not answer";
  const detail = /no (service )?answer|does not answer/.test(problem) ? "" : `${problem}. `;
  const below = latest === null ? "" : ` What is below is of ${moment(answeredAt)}.`;
  showAway(title, [detail, { command: `systemctl status ${isOfDaemon ? "mptcp-throttled" : "mptcp-throttle-web"}` }, ` on the proxy says why.${below}`]);
}

// `detail` may change all the time: screen readers announce only what is before it.
function showState(kind, state, detail = "") {
  byId("connection").className = `state ${kind}`;
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
    if (isOverview()) await networks.load();
    else await drawClient();
    showText("chart-problem", "");
    document.body.dataset.drawn = range;
  } catch (error) {
    if (latest !== null) showText("chart-problem", error.message);
  }
  if (range !== choices.range || latest === null) return;
  drawing = setTimeout(draw, 1000 * (DRAW_SECONDS[choices.range] ?? 60));
}

function showTheme() {
  document.documentElement.dataset.theme = choices.theme;
  byId("theme").setAttribute("aria-label", `Colours ${THEMES[choices.theme] ?? ""}`);
}

// Either all clients, or the page of one.
function showView() {
  byId("overview").hidden = !isOverview();
  byId("client-page").hidden = isOverview();
  if (isOverview()) clearClient();
  if (latest === null) return;
  startPolls();
  draw();
  scrollTo(0, 0);
}

function bind(control, name, milliseconds) {
  let later;
  control.value = choices[name];
  control.addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(() => choose(name, control.value), milliseconds);
  });
  onChoice((changed) => {
    if (changed === name && control.value !== choices[name]) control.value = choices[name];
  });
}

prepareClients(polls.clients);
prepareClient(actions);
prepareTimeline();
prepareKeyboard();
prepareFolds();
const showRange = toggles(byId("range"), RANGES, (value) => choose("range", value));
const showDirection = toggles(byId("direction"), DIRECTIONS, (value) => choose("direction", value));
showRange(choices.range);
showDirection(choices.direction);
bind(byId("pattern"), "pattern", 300);
bind(byId("network"), "network", 0);
bind(byId("rule"), "rule", 0);
byId("saved-exports").append(exportLinks("saved"));
byId("waiting-exports").append(exportLinks("waiting"));
byId("week-exports").append(exportLinks("week", weekAsked));
byId("networks-exports").append(exportLinks("networks"));
byId("budgets-exports").append(exportLinks("budgets"));
byId("clients-exports").append(exportLinks("clients", () => ({ order: choices.order, network: choices.network, rule: choices.rule, search: choices.pattern })));
byId("clients-exports").append(element("button", { type: "button", className: "plain", textContent: "Print", "aria-label": "Print all clients", onclick: () => printClients().catch((error) => say(error.message)) }));
byId("timeline-exports").append(exportLinks("timeline"));
byId("theme").onclick = () => choose("theme", { "": "dark", dark: "light", light: "" }[choices.theme]);
byId("hidden").onclick = () => choose("hidden", choices.hidden === "true" ? "" : "true");
byId("brand").onclick = (event) => {
  event.preventDefault();
  choose("client", "");
};
onChoice((name) => {
  if (name === "hidden") connect();
  if (name === "theme") showTheme();
  if (name === "client") showView();
  if (["pattern", "network", "rule", "order"].includes(name)) askClientsAgain();
  if (name === "kinds") showTimeline();
  if (name === "folded") showFolds();
  if (["range", "direction"].includes(name)) {
    showRange(choices.range);
    showDirection(choices.direction);
    if (latest !== null) draw();
  }
});
// A link would replace the other choices in the address.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const id = link.getAttribute("href").slice(1);
  if (link.dataset.client === undefined && byId(id) === null) return;
  event.preventDefault();
  if (link.dataset.client === undefined) goTo(id);
  else choose("client", link.dataset.client);
});
showTheme();
byId("overview").hidden = !isOverview();
byId("client-page").hidden = isOverview();
setInterval(checkAge, 1000);
actions.refresh().catch((error) => showConnection(error.message));
