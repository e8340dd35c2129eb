// Questions to the server that are asked again while somebody looks at what they fill.

import { choices } from "./choices.js";
import { get, post, session } from "./server.js";

// What this visitor sees of clients: "addresses", "names" or "nothing".
export function seen() {
  if (!session.sees) return "nothing";
  return session.sees_addresses && choices.hidden !== "true" ? "addresses" : "names";
}

export function ask(path, parameters = {}) {
  return get(path, { ...parameters, hidden: seen() === "addresses" ? null : "true" });
}

export function change(method, body) {
  return post(`/api/change/${method}`, { ...body, hidden: seen() !== "addresses" });
}

export class Poll {
  // `target` is the element that `show` fills. `parameters` gives the present ones; null: nothing to ask.
  constructor({ path, seconds, target, parameters = () => ({}), show, fail = () => {} }) {
    Object.assign(this, { path, seconds, target, parameters, show, fail });
    this.isOn = false;
    this.round = 0;
    this.isInView = true;
    this.isOld = false;
    new IntersectionObserver(([entry]) => {
      this.isInView = entry.isIntersecting;
      if (this.isInView && this.isOld) this.now();
    }, { rootMargin: "200px" }).observe(target);
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.isOld) this.now();
    });
  }

  start() {
    this.isOn = true;
    this.now();
  }

  stop() {
    this.isOn = false;
    this.round += 1;
    clearTimeout(this.later);
  }

  // Asks at once; an answer to an earlier question is not shown any more.
  async now() {
    if (!this.isOn) return;
    clearTimeout(this.later);
    this.round += 1;
    const { round } = this;
    this.isOld = false;
    const parameters = this.parameters();
    if (parameters !== null) {
      try {
        const answer = await ask(this.path, parameters);
        if (round !== this.round) return;
        this.show(answer);
      } catch (error) {
        if (round !== this.round) return;
        this.fail(error);
      }
    }
    this.later = setTimeout(() => this.again(), 1000 * this.seconds);
  }

  // A section that has nothing to show has no place in which it could be in view.
  again() {
    if (!document.hidden && (this.isInView || this.target.hidden)) this.now();
    else this.isOld = true;
  }
}
