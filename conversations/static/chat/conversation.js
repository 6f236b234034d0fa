// One conversation as the frames of /ws/ make it (docs/protocol.md). No DOM in here: frames in, state out.

/** What `apply` may say: nothing changed, these messages changed, or everything did. */
export const NOTHING = { messages: [] };
export const ALL = { all: true, messages: [] };
/** A frame does not fit what is known: subscribe again, the snapshot puts it right. */
export const ASK = { ask: true, messages: [] };

const ENDS = new Set(["generation.done", "generation.cancelled", "generation.failed", "generation.interrupted"]);

export class Conversation {
  constructor(id) {
    this.id = id;
    this.title = "";
    this.settings = { system_prompt: "", model: "", params: {} }; // of its next answers
    this.messages = []; // the shown path, oldest first
    this.earlier = false; // whether there are older ones on the server
    this.loaded = false; // whether a snapshot has come
  }

  /** The generation under way, if any. */
  get live() {
    return this.messages.map((message) => message.generation).find((generation) => generation && isLive(generation));
  }

  get last() {
    return this.messages.at(-1);
  }

  /** The message from which on the model sees the conversation, if that is shown and not the first one. */
  get windowStart() {
    const moved = this.messages.findLast(({ generation }) => generation?.window_start);
    return this.messages.find(({ id, parent }) => parent && id === moved?.generation.window_start);
  }

  /** Model tokens of the shown path, as far as the last answer that has ended tells. */
  get tokens() {
    const { usage } = this.messages.findLast(({ generation }) => generation?.usage?.prompt_tokens)?.generation ?? {};
    return usage ? usage.prompt_tokens + (usage.completion_tokens ?? 0) : 0;
  }

  apply(frame) {
    if (frame.type === "snapshot") return this.#snapshot(frame);
    if (frame.type === "message.created") return this.#created(frame.messages);
    if (frame.type === "message.html") return this.#html(frame);
    const message = this.messages.find((one) => one.generation?.id === frame.generation);
    if (!message) return NOTHING; // on a branch that is not shown
    if (frame.type === "generation.delta") return this.#delta(message, frame);
    if (ENDS.has(frame.type)) return this.#end(message, frame);
    if (!isLive(message.generation)) return NOTHING; // late: it has ended
    if (frame.type === "generation.queued") {
      const { place, reason, estimate } = frame;
      Object.assign(message.generation, { status: "queued", place, reason, estimate, prefill: null });
    } else if (frame.type === "generation.prefill") {
      const moved = frame.window_start && frame.window_start !== message.generation.window_start;
      Object.assign(message.generation, { status: "running", prefill: frame });
      if (moved) {
        message.generation.window_start = frame.window_start;
        return ALL;
      }
    } else {
      return NOTHING;
    }
    return { messages: [message] };
  }

  /** Older messages, from a page of the REST API. */
  prepend(messages, earlier) {
    const known = new Set(this.messages.map((message) => message.id));
    this.messages.unshift(...messages.filter((message) => !known.has(message.id)).map(begin));
    this.earlier = earlier;
  }

  #snapshot({ conversation, messages, earlier }) {
    const first = this.messages.findIndex((message) => message.id === messages[0]?.id);
    const older = first > 0 ? this.messages.slice(0, first) : [];
    this.title = conversation.title;
    this.settings = conversation;
    this.messages = [...older, ...messages.map(begin)];
    this.earlier = older.length ? this.earlier : earlier;
    this.loaded = true;
    return ALL;
  }

  /** Each goes after its parent; what followed that parent before is another branch now. One may be gone on with. */
  #created(messages) {
    for (const message of messages) {
      const known = this.messages.findIndex((one) => one.id === message.id);
      if (known >= 0) {
        if (isNewer(message.generation, this.messages[known].generation)) {
          this.messages[known] = begin({ html: this.messages[known].html, ...message });
        }
        continue;
      }
      const parent = this.messages.findIndex((one) => one.id === message.parent);
      if (message.parent && parent < 0) return ASK;
      this.messages.splice(parent + 1, Infinity, begin(message));
    }
    return ALL;
  }

  #delta(message, { seq, part, offset, text }) {
    const generation = message.generation;
    if (seq <= generation.seq) return NOTHING;
    if (seq !== generation.seq + 1 || offset !== message.points[part]) return ASK;
    message[part] += text;
    message.points[part] += codePoints(text);
    Object.assign(generation, { seq, status: "running", prefill: null });
    return { messages: [message] };
  }

  /** An end is an event like a piece: with one missing before it, its text is not whole. */
  #end(message, { status, seq, finish_reason, error, usage, timings, window_start }) {
    const generation = message.generation;
    if (seq < generation.seq) return NOTHING;
    if (seq > generation.seq + 1) return ASK;
    const moved = window_start !== generation.window_start;
    Object.assign(generation, { status, seq, finish_reason, error, usage, timings, window_start, prefill: null });
    return moved ? ALL : { messages: [message] };
  }

  #html({ message: id, keep, blocks }) {
    const message = this.messages.find((one) => one.id === id);
    if (!message) return NOTHING;
    message.html = [...(message.html ?? []).slice(0, keep), ...blocks];
    return { messages: [message] };
  }
}

export function isLive(generation) {
  return generation.status === "queued" || generation.status === "running";
}

/** Whether an answer ended too early, with something written: then the model can go on with it. */
export function isCutShort({ text, reasoning, generation }) {
  if (!generation || isLive(generation) || !(text || reasoning)) return false;
  return generation.status === "done" ? generation.finish_reason === "length" : generation.error?.retryable !== false;
}

/** Ids sort by the time of making. */
function isNewer(generation, known) {
  return Boolean(generation) && generation.id > (known?.id ?? "");
}

/** A message of a frame, with the code points of its parts so far: `offset` counts those, not UTF-16 units. */
function begin(message) {
  return { ...message, points: { text: codePoints(message.text), reasoning: codePoints(message.reasoning) } };
}

function codePoints(text) {
  let count = 0;
  for (const _ of text) count++;
  return count;
}
