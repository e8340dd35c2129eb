// Log-in, and the changes that it allows. Each says before what it will do, and afterwards what it has done.

import { byId, element, keep, refill, setText } from "./dom.js";
import { duration, rate, size, until, withRates } from "./format.js";
import { change } from "./polls.js";
import { loadSession, logIn, logOut, session } from "./server.js";
import { say } from "./toast.js";

const HOUR = 3600;

// Shows a dialog; `submit` is tried until it succeeds or the user cancels.
function ask(dialog, submit) {
  const problem = dialog.querySelector(".problem");
  setText(problem, "");
  dialog.querySelector(".cancel").onclick = () => dialog.close();
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    try {
      await submit();
      dialog.close();
    } catch (error) {
      setText(problem, error.message);
    }
  };
  dialog.showModal();
}

function confirm(title, preview, word, submit) {
  setText(byId("confirm-title"), title);
  setText(byId("confirm-preview"), preview);
  setText(byId("confirm-yes"), word);
  ask(byId("confirm"), submit);
}

// Whom a change is about, in words.
function subject({ network, client }) {
  return client === null ? network : `${client} on ${network}`;
}

export class Actions {
  // `sessionChanged` is called after a log-in or log-out, `showProblem` with the reason for a refusal, `changed` after a
  // change. `present` gives the networks of the latest answer.
  constructor({ sessionChanged, showProblem, changed, present }) {
    Object.assign(this, { sessionChanged, showProblem, changed, present });
    this.isPaused = false;
    this.isLive = false;
  }

  async refresh() {
    await loadSession();
    document.body.classList.toggle("may-change", session.may_change);
    this.showAccount();
    this.sessionChanged();
  }

  showAccount() {
    const buttons = [];
    const button = (place, text, action) => buttons.push({ place, text, action });
    if (session.may_change && this.isLive) {
      if (this.isPaused) button("pause", "Resume", () => this.send("resume", {}).catch((error) => this.showProblem(error.message)));
      else button("pause", "Pause", () => this.pause());
    }
    if (session.logged_in) button("session", "Log out", () => this.logOut());
    else if (session.may_log_in) button("session", "Log in", () => this.logIn());
    keep(
      byId("account"), buttons, (item) => item.place,
      () => element("button", { type: "button" }),
      (made, item) => {
        setText(made, item.text);
        made.onclick = item.action;
      },
    );
  }

  showPause(isPaused) {
    if (isPaused === this.isPaused) return;
    this.isPaused = isPaused;
    this.showAccount();
  }

  // A daemon that does not answer cannot be paused.
  showLive(isLive) {
    if (isLive === this.isLive) return;
    this.isLive = isLive;
    this.showAccount();
  }

  logIn() {
    const password = byId("password");
    password.value = "";
    ask(byId("log-in"), async () => {
      await logIn(password.value);
      password.value = "";
      await this.refresh();
    });
  }

  async logOut() {
    await logOut().catch((error) => this.showProblem(error.message));
    await this.refresh();
  }

  // Raises an error if it is refused. What can be taken back has a button for that.
  async send(method, body) {
    this.showProblem("");
    const { did, undo } = await change(method, body);
    const takeBack = async () => {
      for (const { method: back, body: values } of undo) await change(back, values);
      this.changed();
    };
    say(withRates(did), undo ? { what: "It is as before.", act: takeBack } : null);
    this.changed();
  }

  pause() {
    confirm("Pause for 10 minutes", "All subflows are free for 10 minutes: no cap and no limit holds, for any client. Then all rates hold again.", "Pause", () => this.send("pause", { seconds: 600 }));
  }

  // `client` null: the network itself. `networks`: those to choose from; `clientOn` gives its name on each of them.
  askRate({ network, client, networks = [network], clientOn = () => client }) {
    setText(byId("set-rate-title"), `Rate of ${client ?? network}`);
    refill(byId("rate-network"), networks, () => networks.map((name) => element("option", { value: name, textContent: name })));
    byId("rate-network").value = network;
    const asked = () => {
      const [direction, kind] = byId("rate-kind").value.split(" ");
      const value = byId("rate").value.trim();
      const seconds = byId("seconds").value;
      return { network: byId("rate-network").value, client: clientOn(byId("rate-network").value), direction, kind, rate: value === "unlimited" ? null : value, seconds: seconds === "" ? null : Number(seconds) };
    };
    const preview = () => setText(byId("rate-preview"), this.rateWords(asked()));
    for (const id of ["rate-network", "rate-kind", "rate", "seconds"]) byId(id).oninput = preview;
    preview();
    ask(byId("set-rate"), () => this.send("set_rate", asked()));
  }

  rateWords({ network, client, direction, kind, rate: value, seconds }) {
    const way = direction === "uplink" ? "uplink " : "";
    const known = this.present().find(({ name }) => name === network);
    const present = known?.rates[direction][kind];
    const now = present === undefined || client !== null ? "" : ` Now it is ${present.rate_bps === null ? "unlimited" : rate(present.rate_bps)}${present.reason ? `, ${withRates(present.reason)}` : ""}.`;
    const time = seconds === null ? "until it is reset" : `for ${duration(seconds)}, until ${until(Date.now() / 1000 + seconds)}; then its rules decide again`;
    const scope = kind === "cap" ? "while a more preferred network is live" : "always";
    return `The ${way}${kind} of ${subject({ network, client })} becomes ${value === null ? "unlimited" : withRates(value) || "…"}, ${scope}, ${time}.${now}`;
  }

  free({ network, client }) {
    const whom = subject({ network, client });
    confirm(`Free ${whom} for 1 h`, `Nothing is throttled for ${whom} until ${until(Date.now() / 1000 + HOUR)}: no cap, no limit, in both directions. What it carries counts in budgets. Then its rules decide again.`, "Free for 1 h", () => this.send("free", { network, client, seconds: HOUR }));
  }

  reset({ network, client }) {
    const whom = subject({ network, client });
    confirm(`Reset rates of ${whom}`, `Rates of ${whom} that were set by hand end at once. Its other rules decide again.`, "Reset", () => this.send("reset_rate", { network, client }));
  }

  askBudget(budget) {
    const name = budget.client ?? budget.network ?? budget.device;
    setText(byId("add-budget-title"), `Add to the budget of ${name}`);
    const preview = () => setText(byId("amount-preview"), `${size(budget.used)} of ${size(budget.amount)} are used, ${size(Math.max(0, budget.left))} are left. ${byId("amount").value.trim() || "…"} more may be used${byId("amount-until").value ? ` before ${byId("amount-until").value}` : ""}; rates follow at once.`);
    for (const id of ["amount", "amount-until"]) byId(id).oninput = preview;
    preview();
    ask(byId("add-budget"), () => this.send("budget_add", { name, amount: byId("amount").value.trim(), until: byId("amount-until").value || null, every: budget.every, direction: budget.direction }));
  }

  resetBudget(budget) {
    const name = budget.client ?? budget.network ?? budget.device;
    const clients = budget.client === null ? " The budgets of all its clients begin again, too." : "";
    confirm(`Reset the budget of ${name}`, `${size(budget.used)} of ${size(budget.amount)} are used. That becomes 0, so this budget lowers no rate any more. What was added stays.${clients}`, "Reset", () => this.send("budget_reset", { name, every: budget.every, direction: budget.direction }));
  }
}
