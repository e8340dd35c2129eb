// Requests to mptcp-throttle-web.

export const session = {};

// What proves, beside the cookie, that a request is this page's. Browsers send cookies to every port of a host, but
// keep storage for one.
const SECRET = "session-secret";

function headers() {
  try {
    return { "X-Session-Secret": localStorage.getItem(SECRET) ?? "" };
  } catch {
    return {}; // the user allows no storage: nobody can log in
  }
}

async function json(response) {
  const answer = await response.json().catch(() => ({ problem: `HTTP status ${response.status}` }));
  if (!response.ok) throw new Error(answer.problem);
  return answer;
}

export async function get(path, parameters = {}) {
  return json(await fetch(`${path}?${new URLSearchParams(parameters)}`, { headers: headers() }));
}

export async function post(path, body = {}) {
  const all = { ...headers(), "Content-Type": "application/json" };
  return json(await fetch(path, { method: "POST", headers: all, body: JSON.stringify(body) }));
}

export async function logIn(password) {
  const { secret } = await post("/api/log-in", { password });
  localStorage.setItem(SECRET, secret);
}

export async function logOut() {
  await post("/api/log-out");
  localStorage.removeItem(SECRET);
}

export async function loadSession() {
  Object.assign(session, await get("/api/session"));
}

// Calls `show` with each answer. Whenever the stream ends, `refresh` opens it again, if this visitor may still see it.
// An EventSource cannot send the secret.
export class Stream {
  constructor(show, showProblem, refresh) {
    this.show = show;
    this.showProblem = showProblem;
    this.refresh = refresh;
  }

  open(parameters) {
    this.close();
    this.stopper = new AbortController();
    this.follow(parameters, this.stopper.signal);
  }

  async follow(parameters, signal) {
    try {
      const response = await fetch(`/api/events?${new URLSearchParams(parameters)}`, { headers: headers(), signal });
      if (!response.ok) await json(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = `${text}${part.value}`.split("\n\n");
        text = events.pop();
        // Not in this function: an error there is none of the stream.
        for (const event of events) queueMicrotask(() => signal.aborted || this.show(JSON.parse(event.slice("data: ".length))));
      }
      throw new Error("mptcp-throttle-web does not answer");
    } catch (error) {
      if (signal.aborted) return;
      // What fetch itself says differs between browsers.
      this.showProblem(error instanceof TypeError ? "mptcp-throttle-web does not answer" : error.message);
      this.later = setTimeout(() => this.retry(), 2000);
    }
  }

  async retry() {
    try {
      await this.refresh();
    } catch {
      this.later = setTimeout(() => this.retry(), 2000);
    }
  }

  close() {
    clearTimeout(this.later);
    this.stopper?.abort();
  }
}
