// One sentence: is all well?

import { byId, element, icon, networkName, refill } from "./dom.js";
import { capital, count, duration, until, words } from "./format.js";

const ATTENTION = { text: "Needs attention", href: "#attention-panel" };

// The text is a list of pieces: a string, {text, href} for a link, {network}, or {command}.
function ofAnswer({ daemon, networks, verdict, clients, rates_age: age }) {
  if (verdict.level === "away") return { level: "bad", title: "The daemon does not know any connection", text: ["Nothing is throttled meanwhile. See ", ATTENTION, "."] };
  if (verdict.level === "problem") {
    const title = verdict.not_enforced
      ? `${words(verdict.not_enforced, "rate")} ${verdict.not_enforced === 1 ? "is" : "are"} not enforced`
      : `${words(verdict.problems, "problem")} ${verdict.problems === 1 ? "needs" : "need"} action`;
    return { level: "bad", title: capital(title), text: ["What to do is under ", ATTENTION, "."] };
  }
  if (verdict.level === "paused") {
    const { expires_at: at, seconds_left: left } = daemon.pause ?? {};
    return { level: "warn", title: "Paused: nothing is throttled", text: [at ? `By the operator, until ${until(at)}, for ${duration(left)} more.` : "By the operator, until it is resumed."] };
  }
  if (age === null) return { level: "away", title: "No observation yet", text: ["The daemon has not looked at its connections yet."] };
  const text = [clients ? `Every rate is enforced for ${count(clients, "client")} on ${count(networks.length, "network")}.` : `No client is connected at present; ${count(networks.length, "network")} configured.`];
  verdict.sick.forEach((network) => text.push(" ", { network }, " has sick paths."));
  if (verdict.level === "ok") return { level: "ok", title: "All is well", text };
  if (verdict.notes) text.push(" See ", ATTENTION, ".");
  return { level: "warn", title: verdict.notes ? `It works, with ${words(verdict.notes, "note")}` : "It works, with sick paths", text };
}

export function showVerdict(answer) {
  fill(ofAnswer(answer), answer.networks);
}

// The page may go on showing what it has seen before.
export function showAway(title, text) {
  fill({ level: "bad", title, text }, []);
}

function fill(shown, networks) {
  const box = byId("verdict");
  box.className = `verdict ${shown.level}`;
  refill(box, shown, () => [
    element("h1", {}, icon(shown.level, "icon big"), shown.title),
    element("p", {}, ...shown.text.map((piece) => pieceOf(piece, networks))),
  ]);
}

function pieceOf(piece, networks) {
  if (typeof piece === "string") return piece;
  if (piece.command) return element("code", { textContent: piece.command });
  return piece.network ? networkName(piece.network, networks) : element("a", { href: piece.href, textContent: piece.text });
}
