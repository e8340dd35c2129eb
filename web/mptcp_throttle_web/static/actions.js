// Log-in, and the changes that it allows.

import { byId, element, keep, setText } from "./dom.js";
import { loadSession, logIn, logOut, post, session } from "./server.js";

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

export class Actions {
  // `sessionChanged` is called after a log-in or log-out, `showProblem` with the reason for a refusal.
  constructor(sessionChanged, showProblem) {
    this.sessionChanged = sessionChanged;
    this.showProblem = showProblem;
    this.isPaused = false;
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
    if (session.may_change) {
      if (this.isPaused) button("pause", "resume", () => this.change("resume", {}));
      else button("pause", "pause for 10 minutes", () => this.change("pause", { seconds: 600 }));
    }
    if (session.logged_in) button("session", "log out", () => this.logOut());
    else if (session.may_log_in) button("session", "log in", () => this.logIn());
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

  askRate(network) {
    setText(byId("set-rate-network"), network);
    ask(byId("set-rate"), () => {
      const rate = byId("rate").value.trim();
      const seconds = byId("seconds").value;
      const [direction, kind] = byId("rate-kind").value.split(" ");
      return post("/api/change/set_rate", {
        network,
        direction,
        kind,
        rate: rate === "unlimited" ? null : rate,
        seconds: seconds === "" ? null : Number(seconds),
      });
    });
  }

  async change(method, body) {
    this.showProblem("");
    try {
      await post(`/api/change/${method}`, body);
    } catch (error) {
      this.showProblem(error.message);
    }
  }
}
