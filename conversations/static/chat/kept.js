// What a person has written and the server does not have yet: kept in this browser until it does. Nothing typed is lost.
//
// A browser may refuse storage (private windows, full disks): then it lasts as long as the page.

import { uuid } from "./ids.js";

const person = document.body.dataset.person;
const memory = new Map();

/** This tab, through reloads: of several tabs one delivers a message that could not be sent at once. */
export const tab = thisTab();

/** The text in the box of a conversation (`null`: the new one). */
export const drafts = {
  get: (conversation) => read(`draft:${conversation}`) ?? "",
  set: (conversation, text) => (text ? write(`draft:${conversation}`, text) : drop(`draft:${conversation}`)),
};

/** What stands in the editor of a message: `{text, sent, client_id}`, the latter two of when it was sent last. */
export const edits = {
  get: (message) => JSON.parse(read(`edit:${message}`) ?? "null"),
  put: (message, kept) => write(`edit:${message}`, JSON.stringify(kept)),
  drop: (message) => drop(`edit:${message}`),
};

/**
 * Messages on their way: `{client_id, conversation, text, at, tab, problem}` by `client_id`; one that is to stand in
 * place of another has that as `edits`. One leaves when the server says that it has it, or when its text goes back into
 * the box; an edit, also when its editor is closed.
 */
export const outbox = {
  all: () => keys("out:").map((key) => JSON.parse(read(key))).sort((a, b) => a.at - b.at),
  of: (conversation) => outbox.all().filter((message) => message.conversation === conversation),
  get: (client_id) => JSON.parse(read(`out:${client_id}`) ?? "null"),
  put: (message) => write(`out:${message.client_id}`, JSON.stringify(message)),
  take: (client_id) => drop(`out:${client_id}`),
};

/** That no websocket gets through to here: this tab, through reloads, does not wait for one. */
export const socketless = {
  is: () => ofTab("socketless") === "true",
  set: (is) => ofTab("socketless", String(is)),
};

/** At signing out: nothing of this person stays in the browser. */
export function forgetEverything() {
  for (const key of keys("")) drop(key);
}

function thisTab() {
  const id = ofTab("tab") ?? uuid();
  ofTab("tab", id);
  return id;
}

/** What the tab keeps under `key`, or is to keep from now on. */
function ofTab(key, value) {
  try {
    if (value !== undefined) sessionStorage.setItem(key, value);
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

function name(key) {
  return `chat:${person}:${key}`;
}

function keys(prefix) {
  const wanted = name(prefix);
  let stored = [];
  try {
    stored = Object.keys(localStorage);
  } catch {
    // No storage: what is in memory is all there is.
  }
  const all = new Set([...stored, ...memory.keys()]);
  return [...all].filter((key) => key.startsWith(wanted)).map((key) => key.slice(name("").length));
}

function read(key) {
  try {
    return localStorage.getItem(name(key)) ?? memory.get(name(key)) ?? null;
  } catch {
    return memory.get(name(key)) ?? null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(name(key), value);
    memory.delete(name(key));
  } catch {
    memory.set(name(key), value);
  }
}

function drop(key) {
  memory.delete(name(key));
  try {
    localStorage.removeItem(name(key));
  } catch {
    // It was never stored.
  }
}
