// The REST API, as this page uses it. A refusal is a `Problem` with the server's sentence, and `errors` by field.

import { uuid } from "./ids.js";

export class Problem extends Error {
  constructor({ code, detail, retryable, errors }) {
    super(detail);
    this.code = code;
    this.retryable = retryable;
    this.errors = errors;
  }
}

export const AWAY = { code: "away", detail: "The site does not answer at the moment.", retryable: true };
const PATIENCE = 20_000; // ms

/** Calls `path` under /api/v1/, or the whole address of a next page or another path, and gives its JSON. Throws Problem. */
export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-CSRFToken"] = cookie("csrftoken");
  let response;
  try {
    // Behind a proxy the site may have another name for itself than the page has.
    const { pathname, search } = new URL(path, `${location.origin}/api/v1/`);
    response = await fetch(pathname + search, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE), // a network that swallows everything would keep us for minutes
    });
  } catch {
    throw new Problem(AWAY);
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => AWAY);
  if (response.status === 401) signIn();
  if (!response.ok) throw new Problem(answer);
  return answer;
}

const wishes = new Map(); // client_id by path, until it is known what became of it

/** Asks for an answer. Asked again before it is known whether the server has heard, it is the same wish. */
export async function wish(path) {
  const client_id = wishes.get(path) ?? uuid();
  wishes.set(path, client_id);
  const made = await call("POST", path, { client_id });
  wishes.delete(path);
  return made;
}

/** The session has ended: to the sign-in page, and back here afterwards. What was being written is kept. */
export function signIn() {
  location.assign(`/sign-in/?next=${encodeURIComponent(location.pathname)}`);
}

function cookie(name) {
  const found = document.cookie.split("; ").find((entry) => entry.startsWith(`${name}=`));
  return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
}
