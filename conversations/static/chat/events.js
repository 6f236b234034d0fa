// What stands in for a WebSocket where a proxy lets none through: server-sent events down, the REST API up.

import { AWAY, call } from "./api.js";

const SIGNED_OUT = 4401; // close code

/** As much of a WebSocket as `Connection` uses, with the same frames. */
export class Events extends EventTarget {
  #source = null;
  #conversation = null; // the one that is followed
  #html = false;
  #re; // the `id` of the frame that asked for that
  #first = true;
  #heard = false; // anything on this stream
  readyState = WebSocket.CONNECTING;

  constructor() {
    super();
    this.#open();
  }

  send(text) {
    const frame = JSON.parse(text);
    if (frame.type === "subscribe") this.#follow(frame);
    else if (frame.type === "send") this.#say(frame);
    else if (frame.type === "cancel") this.#ask(frame, `generations/${frame.generation}/cancel/`);
    // The stream pings by itself; and what a client unsubscribes from, it follows until it subscribes to something else.
  }

  close(code = 0) {
    if (this.readyState === WebSocket.CLOSED) return;
    this.readyState = WebSocket.CLOSED;
    this.#source.close();
    this.dispatchEvent(new CloseEvent("close", { code }));
  }

  #open() {
    this.#source?.close();
    this.#heard = false;
    const query = this.#conversation ? `?conversation=${this.#conversation}&html=${this.#html}` : "";
    const source = new EventSource(`/api/v1/events/${query}`);
    this.#source = source;
    source.addEventListener("message", ({ data }) => source === this.#source && this.#hear(JSON.parse(data)));
    source.addEventListener("error", () => source === this.#source && this.#broken());
  }

  /** A stream has its conversation from the beginning: another one is another stream, and no news to the page. */
  #follow({ conversation, html, id }) {
    this.#conversation = conversation;
    this.#html = html;
    this.#re = id;
    this.#open();
  }

  #hear(frame) {
    this.#heard = true;
    if (frame.type === "error" && frame.code === "not_signed_in") {
      this.close(SIGNED_OUT);
      return;
    }
    if (frame.type === "ready" && !this.#first) return;
    this.#first = false;
    this.readyState = WebSocket.OPEN;
    this.#tell(frame);
  }

  #tell(frame) {
    this.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(frame) }));
  }

  /** A browser does not say why: whether the session has ended, any other request tells (`call` goes to sign in). */
  async #broken() {
    const [source, conversation] = [this.#source, this.#conversation];
    const refused = !this.#heard && conversation;
    source.close();
    if (!refused) this.close();
    const path = refused ? `conversations/${conversation}/` : "conversations/?limit=1";
    const problem = await call("GET", path).then(() => null, (problem) => problem);
    if (!refused || source !== this.#source || this.readyState === WebSocket.CLOSED) return;
    if (problem?.code === "not_found") this.#unfollow(problem);
    else this.close();
  }

  /** Nothing is wrong with the line: there is no such conversation, as a socket says it. */
  #unfollow({ code, message: detail, retryable }) {
    this.#conversation = null;
    this.#open();
    this.#tell({ type: "error", code, detail, retryable, re: this.#re });
  }

  /** A socket answers its own client, though the event be lost or its conversation be followed only a moment later. */
  async #say({ type, conversation, ...words }) {
    const { client_id } = words;
    const sent = await this.#ask({ client_id }, `conversations/${conversation}/messages/`, words);
    if (sent) this.#tell({ type: "message.created", conversation, client_id, messages: [sent.message, answerOf(sent)] });
  }

  async #ask(about, path, body) {
    try {
      return await call("POST", path, body);
    } catch (problem) {
      const { code, message: detail, retryable } = problem;
      if (code === AWAY.code) this.close(); // whoever comes back sends it again
      else this.#tell({ type: "error", code, detail, retryable, ...about });
      return null;
    }
  }
}

function answerOf({ message, generation }) {
  const { message: id, text, reasoning } = generation;
  const { id: parent, created_at } = message;
  return { id, parent, role: "assistant", text, reasoning, created_at, versions: [id], notes: [], generation };
}
