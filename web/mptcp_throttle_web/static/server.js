// Requests to mptcp-throttle-web.

export const session = {};

async function json(response) {
  const answer = await response.json().catch(() => ({ problem: `HTTP status ${response.status}` }));
  if (!response.ok) throw new Error(answer.problem);
  return answer;
}

export async function get(path, parameters = {}) {
  return json(await fetch(`${path}?${new URLSearchParams(parameters)}`));
}

export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": session.csrf ?? "" };
  return json(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

export async function loadSession() {
  Object.assign(session, await get("/api/session"));
}

// Calls `show` with each answer. The browser connects again by itself, and so do we where it gives up.
export class Stream {
  constructor(show, showProblem, refresh) {
    this.show = show;
    this.showProblem = showProblem;
    this.refresh = refresh;
  }

  open(parameters) {
    this.close();
    this.parameters = parameters;
    const source = new EventSource(`/api/events?${new URLSearchParams(parameters)}`);
    source.onmessage = (event) => this.show(JSON.parse(event.data));
    source.onerror = () => {
      this.showProblem("mptcp-throttle-web does not answer");
      // `refresh` opens the stream again, if this visitor may still see it.
      if (source.readyState === EventSource.CLOSED) this.later = setTimeout(() => this.retry(parameters), 2000);
    };
    this.source = source;
  }

  async retry(parameters) {
    try {
      await this.refresh();
    } catch {
      this.later = setTimeout(() => this.retry(parameters), 2000);
    }
  }

  close() {
    clearTimeout(this.later);
    this.source?.close();
  }
}
