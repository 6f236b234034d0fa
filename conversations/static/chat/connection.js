// The websocket: connects, signs in by the session's cookie, keeps itself alive, and comes back by itself. Where none
// gets through, server-sent events stand in for it.

import { Events } from "./events.js";
import { socketless } from "./kept.js";

const SIGNED_OUT = 4401; // close code
const QUIET_PING = 15_000; // keeps proxies from closing an idle socket
const WAITING_PING = 3_000; // while something is awaited: a lost last event, or a dead line, is found by asking
const PATIENCE = 8_000; // without an answer to a ping, or to opening
const MOST_REFUSED = 2; // sockets that did not open, one after the other: then every other try is without
const SHORT_PATIENCE = 2_000; // when the page or the network has just come back: the old socket is probably dead
const SLOWEST = 10_000;

/**
 * Calls `on.frame(frame)` for every frame, `on.state("online" | "offline")` when it comes and goes,
 * `on.signedOut()` when the session has ended. `on.known()` gives `{generation: seq}` of what is under way,
 * `on.waiting()` whether anything is: an answer, or a message that the server has not confirmed.
 */
export class Connection {
  #on;
  #socket = null;
  #failures = 0;
  #refused = 0; // sockets in a row that never were ready
  #timer = 0;
  #heardAt = 0;
  #askedAt = 0; // when it was opened, or last pinged
  #patience = PATIENCE;
  ready = false;

  constructor(on) {
    this.#on = on;
    addEventListener("online", () => this.#now());
    addEventListener("pageshow", () => this.#now());
    document.addEventListener("visibilitychange", () => document.hidden || this.#now());
    setInterval(() => this.#beat(), 1000);
    this.#open();
  }

  /** Sends a frame; false when there is no connection, and then nothing was sent. */
  send(frame) {
    if (!this.ready || this.#socket.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  #open() {
    clearTimeout(this.#timer);
    const socket = this.#isSocketless() ? new Events() : new WebSocket(address());
    this.#socket = socket;
    this.#askedAt = performance.now();
    this.#patience = PATIENCE;
    socket.addEventListener("message", (event) => socket === this.#socket && this.#heard(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => socket === this.#socket && this.#closed(event.code));
  }

  #heard(frame) {
    this.#heardAt = performance.now();
    if (frame.type === "ready") {
      this.ready = true;
      this.#failures = 0;
      this.#refused = 0;
      if (!(this.#socket instanceof Events)) socketless.set(false);
      else if (!socketless.is()) this.#tryAgain();
      this.#on.state("online");
    }
    this.#on.frame(frame);
  }

  /** Whether the next try is without a websocket. */
  #isSocketless() {
    return (socketless.is() || this.#refused >= MOST_REFUSED) && this.#refused % 2 === 0;
  }

  /** It may have been the site that was away, and not a proxy that lets none through. */
  #tryAgain() {
    const socket = new WebSocket(address());
    let works = false;
    socket.addEventListener("message", () => {
      works = true;
      socket.close();
      if (this.#socket instanceof Events) this.#drop();
    });
    socket.addEventListener("close", () => works || socketless.set(true));
  }

  #closed(code) {
    if (!this.ready) this.#refused++;
    this.ready = false;
    this.#socket = null;
    if (code === SIGNED_OUT) {
      this.#on.signedOut();
      return;
    }
    this.#on.state("offline");
    // At once the first time; then ever more seldom, and not everybody in the same moment.
    const wait = Math.min(SLOWEST, 250 * 2 ** this.#failures) * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(() => this.#open(), this.#failures++ ? wait : 0);
  }

  /** The network or the page is back: try now, or find out whether the old socket still lives. */
  #now() {
    if (this.#socket === null) this.#open();
    else if (this.ready) this.#ping(this.#socket instanceof Events ? PATIENCE : SHORT_PATIENCE); // those ping themselves
  }

  #beat() {
    if (this.#socket === null) return;
    const now = performance.now();
    const answered = this.ready && this.#heardAt >= this.#askedAt;
    if (!answered) {
      if (now - this.#askedAt > this.#patience) this.#drop();
    } else if (now - Math.max(this.#askedAt, this.#heardAt) > this.#pause()) {
      this.#ping(PATIENCE);
    }
  }

  #pause() {
    return this.#on.waiting() ? WAITING_PING : QUIET_PING;
  }

  #ping(patience) {
    this.#askedAt = performance.now();
    this.#patience = patience;
    this.send({ type: "ping", known: this.#on.known() });
  }

  /** A socket whose other end is silent may take minutes to close: it is left alone and another one opened. */
  #drop() {
    const socket = this.#socket;
    this.#closed(0);
    socket.close();
  }
}

function address() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/`;
}
