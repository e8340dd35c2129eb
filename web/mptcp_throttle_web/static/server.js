// Requests to mptcp-throttle-web.

export const session = {};

// Proves, besides the cookie, that a request comes from this page. Browsers send cookies to every port of a host, but
// separate storage by port.
const SECRET = "session-secret";

function headers() {
  try {
    return { "X-Session-Secret": localStorage.getItem(SECRET) ?? "" };
  } catch {
    return {}; // without storage there is no log-in
  }
}

async function json(response) {
  const answer = await response.json().catch(() => ({ problem: `HTTP status ${response.status}` }));
  if (!response.ok) throw new Error(answer.problem);
  return answer;
}

// Of what is null or undefined, the server has its own default.
function query(parameters) {
  return new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

export async function get(path, parameters = {}) {
  return json(await fetch(`${path}?${query(parameters)}`, { headers: headers() }));
}

// A file, to save. A link alone could not send the secret.
export async function save(path, parameters, name) {
  const response = await fetch(`${path}?${query(parameters)}`, { headers: headers() });
  if (!response.ok) await json(response);
  const address = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
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

// Calls `show` with each answer. When the stream ends, `refresh` opens it again if the visitor may still see it.
// Not an EventSource, which cannot send the secret.
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
      const response = await fetch(`/api/events?${query(parameters)}`, { headers: headers(), signal });
      if (!response.ok) await json(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = `${text}${part.value}`.split("\n\n");
        text = events.pop();
        // Not in this function: an error in `show` is not an error of the stream.
        for (const event of events) queueMicrotask(() => signal.aborted || this.show(JSON.parse(event.slice("data: ".length))));
      }
      throw new Error("mptcp-throttle-web does not answer");
    } catch (error) {
      if (signal.aborted) return;
      // The messages of fetch itself differ between browsers.
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
