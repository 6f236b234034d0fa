// The messages of the open conversation as elements. Elements live as long as their message: text that is being read
// or selected is never replaced by the same text.

import { copyWith } from "../copy.js";
import { isCutShort, isLive } from "./conversation.js";
import { editorFor } from "./editor.js";
import { button, make, say } from "./elements.js";
import { facts, failure, figures, note, progress, thoughts as overThoughts } from "./wording.js";

const MARKED = 2500; // ms for which a message that was found stands out
const FORGOTTEN = "The model no longer sees what is above this line: all of it is more than it can read at once.";
const NEAR = 60; // pixels from the end that still count as being there

export class Messages {
  /**
   * `on.regenerate(message)`, `on.goOn(message)`, `on.version(id)`, `on.retry(outgoing)`,
   * `on.takeBack(outgoing)`, `on.earlier()` and what `editorFor` names are what people ask for.
   */
  constructor(scroller, list, on) {
    this.scroller = scroller;
    this.list = list;
    this.on = on;
    this.articles = new Map(); // by message id
    this.earlier = button("Show earlier messages", () => on.earlier(), "quiet.earlier");
    this.memory = make("p.memory", { role: "note" }, FORGOTTEN); // where that of the model begins
    this.outgoing = new Map(); // by client_id
    this.edits = new Map(); // those of messages that are shown, by message id
    this.toEnd = document.querySelector("#to-end");
    this.toEnd.addEventListener("click", () => this.scrollToEnd());
    this.atEnd = true;
    scroller.addEventListener("scroll", () => this.#look(), { passive: true });
    // The box grows, the keyboard comes, the window changes: who was at the end stays there.
    new ResizeObserver(() => this.atEnd && this.#stay()).observe(scroller);
  }

  clear() {
    this.list.replaceChildren();
    this.articles.clear();
    this.outgoing.clear();
    this.atEnd = true;
  }

  /** Shows `conversation`, and `outgoing`, which the server does not have yet, after it. */
  show(conversation, outgoing) {
    this.#keepingPlace(() => {
      const shown = new Set(conversation.messages.map((message) => message.id));
      const wanted = conversation.messages.map((message) => this.#article(message));
      const start = wanted.indexOf(this.articles.get(conversation.windowStart?.id));
      if (start >= 0) wanted.splice(start, 0, this.memory);
      if (conversation.earlier) wanted.unshift(this.earlier);
      this.edits = new Map(outgoing.filter((one) => shown.has(one.edits)).map((one) => [one.edits, one]));
      const waiting = outgoing.filter((one) => !this.edits.has(one.edits)).map((message) => this.#outgoing(message));
      arrange(this.list, [...wanted, ...waiting]);
      this.#forget(this.articles, shown);
      this.#forget(this.outgoing, new Set(outgoing.map((message) => message.client_id)));
      for (const message of conversation.messages) this.#update(message, conversation);
    });
  }

  /** Shows what changed in `messages` of `conversation`. */
  update(conversation, messages) {
    this.#keepingPlace(() => messages.forEach((message) => this.#update(message, conversation)));
  }

  scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#look();
  }

  /** Scrolls to the message `id` and marks it for a moment; false if it is not shown. */
  reveal(id) {
    const article = this.articles.get(id);
    if (!article) return false;
    this.atEnd = false;
    article.scrollIntoView({ block: "center" });
    article.classList.add("found");
    setTimeout(() => article.classList.remove("found"), MARKED);
    this.#look();
    return true;
  }

  /** Who is at the end stays there; who reads further up is not moved, whatever comes above or below. */
  #keepingPlace(change) {
    const below = this.scroller.scrollHeight - this.scroller.scrollTop;
    const first = this.list.querySelector("article");
    change();
    if (this.atEnd) this.#stay();
    else if (first !== this.list.querySelector("article")) this.scroller.scrollTop = this.scroller.scrollHeight - below;
    this.#look();
  }

  #stay() {
    if (this.list.childElementCount) this.scrollToEnd();
  }

  /** The card of the first minutes is read from its beginning: only messages have an end to stay at. */
  #look() {
    const below = this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
    this.atEnd = below < NEAR || !this.list.childElementCount;
    this.toEnd.hidden = this.atEnd;
  }

  #forget(elements, kept) {
    for (const key of elements.keys()) if (!kept.has(key)) elements.delete(key);
  }

  #article(message) {
    if (!this.articles.has(message.id)) {
      const article = message.role === "user" ? said(message, this.on) : answer(message, this.on);
      this.articles.set(message.id, article);
    }
    return this.articles.get(message.id);
  }

  #outgoing(message) {
    if (!this.outgoing.has(message.client_id)) this.outgoing.set(message.client_id, outgoing(message, this.on));
    const article = this.outgoing.get(message.client_id);
    article.update(message);
    return article;
  }

  #update(message, conversation) {
    this.articles.get(message.id)?.update?.(message, conversation, this.edits.get(message.id));
  }
}

/** Puts `wanted` into `list` in this order, moving as little as possible. */
function arrange(list, wanted) {
  const kept = new Set(wanted);
  for (const child of [...list.children]) if (!kept.has(child)) child.remove();
  wanted.forEach((element, at) => list.children[at] === element || list.insertBefore(element, list.children[at] ?? null));
}

function question(message) {
  const text = make("div.text", { dir: "auto" }, message.text);
  return make("article", { "data-role": "user", "data-message": message.id }, heading("You"), text);
}

/** What a person said: it can be said otherwise, and every version of it be gone back to. */
function said(message, on) {
  const article = question(message);
  const text = article.querySelector(".text");
  const versions = versionsOf(on);
  const change = button("Edit", () => editor.open());
  const actions = make("div.actions", {}, versions, change);
  const editor = editorFor(article, on, (isOpen) => {
    const inside = editor.contains(document.activeElement);
    text.hidden = actions.hidden = isOpen;
    if (!isOpen && inside) change.focus();
  });
  article.message = message;
  article.append(...notesOf(message), editor, actions);
  editor.restore();
  article.update = (now, conversation, outgoing) => {
    article.message = now;
    const busy = Boolean(conversation.live);
    versions.show(now, busy);
    change.hidden = busy;
    editor.update(outgoing, busy);
  };
  return article;
}

/** "‹ 2 of 3 ›" for a message that has been said or answered more than once. */
function versionsOf(on) {
  const before = button("‹", () => on.version(element.ids[element.at - 1]));
  const after = button("›", () => on.version(element.ids[element.at + 1]));
  const which = make("span");
  const element = make("span.versions", { role: "group", "aria-label": "Versions" }, before, which, after);
  before.setAttribute("aria-label", "Version before");
  after.setAttribute("aria-label", "Version after");
  element.show = ({ id, versions }, busy) => {
    element.ids = versions ?? [];
    element.at = element.ids.indexOf(id);
    element.hidden = element.ids.length < 2;
    before.disabled = busy || element.at <= 0;
    after.disabled = busy || element.at >= element.ids.length - 1;
    say(which, `${element.at + 1} of ${element.ids.length}`);
  };
  return element;
}

/** What an imported message had that cannot be shown. */
function notesOf({ notes }) {
  return notes.map((sentence) => make("p.note", { dir: "auto" }, sentence));
}

function heading(who) {
  return make("h2.visually-hidden", {}, who);
}

function outgoing(message, on) {
  const article = question({ ...message, id: message.client_id });
  const problem = make("div.notice.error", { role: "alert" });
  const state = make("p.progress", {}, "Sending");
  article.classList.add("outgoing");
  article.append(state, problem);
  article.update = ({ problem: sentence }) => {
    state.hidden = Boolean(sentence);
    problem.hidden = !sentence;
    if (!sentence || problem.dataset.sentence === sentence) return;
    problem.dataset.sentence = sentence;
    problem.replaceChildren(
      make("p", {}, `Not sent. ${sentence}`),
      button("Retry", () => on.retry(message.client_id), "retry"),
      button("Back to the box", () => on.takeBack(message.client_id)),
    );
  };
  return article;
}

function answer(message, on) {
  const article = make("article", { "data-role": "assistant", "data-message": message.id });
  const thoughts = make("div.thoughts", { dir: "auto" });
  const over = make("summary");
  const thinking = make("details.thinking", {}, over, thoughts);
  const text = make("div.text", { dir: "auto" });
  const line = make("span");
  const bar = make("progress", { "aria-label": "Read of the conversation" });
  const state = make("div.progress", {}, line, bar);
  const sentence = make("p");
  const goOn = () => on.goOn(article.message);
  const moreOfFailed = button("Continue", goOn, "retry");
  const retry = button("Retry", () => on.regenerate(message), "retry");
  const problem = make("div.notice.error", { role: "alert" }, sentence, moreOfFailed, retry);
  const after = make("p.note");
  const copy = button("Copy", () => copyWith(copy, article.message.text));
  const more = button("Continue", goOn);
  const again = button("Regenerate", () => on.regenerate(message));
  const glance = make("summary");
  const known = make("dl");
  const about = make("details.figures.muted", {}, glance, known);
  const versions = versionsOf(on);
  const actions = make("div.actions", {}, versions, copy, more, again, about);
  article.append(heading("Answer"), thinking, text, ...notesOf(message), state, problem, after, actions);
  article.blocks = [];
  article.update = (now, conversation) => {
    const generation = now.generation ?? { status: "done" };
    const live = isLive(generation);
    const failed = generation.status === "failed" || generation.status === "interrupted";
    article.message = now;
    article.dataset.status = generation.status;
    article.setAttribute("aria-busy", String(live));
    thinking.hidden = !now.reasoning;
    say(thoughts, now.reasoning);
    say(over, overThoughts(generation, Boolean(now.text)));
    write(article, text, now);
    text.hidden = !now.text;
    const begun = generation.status === "running" && Boolean(now.text || now.reasoning);
    state.hidden = !live || (begun && !generation.prefill);
    if (!state.hidden) showProgress(line, bar, generation);
    problem.hidden = !failed;
    if (failed) say(sentence, failure(generation));
    const said = live ? "" : note(generation);
    after.hidden = !said;
    say(after, said);
    if (!live) showFigures(glance, known, generation);
    actions.hidden = live;
    versions.show(now, Boolean(conversation.live));
    copy.hidden = !now.text;
    const last = now.id === conversation.last?.id;
    const cutShort = last && isCutShort(now);
    moreOfFailed.hidden = !cutShort;
    more.hidden = !cutShort || failed;
    again.hidden = failed || !last;
  };
  return article;
}

function showProgress(line, bar, generation) {
  say(line, progress(generation));
  bar.hidden = !generation.prefill;
  if (generation.prefill) {
    bar.max = generation.prefill.total;
    bar.value = generation.prefill.processed;
  }
}

function showFigures(line, known, generation) {
  const shown = facts(generation);
  const now = JSON.stringify(shown);
  say(line, figures(generation));
  if (known.dataset.now === now) return; // what is read or selected stays
  known.dataset.now = now;
  known.replaceChildren(...shown.map(([name, what]) => make("div", {}, make("dt", {}, name), make("dd", {}, what))));
}

/** The rendered text, block by block; the source as it is while no rendering has come. */
function write(article, text, { html, text: source }) {
  if (!html) {
    article.blocks = [];
    say(text, source);
    text.classList.add("plain");
    return;
  }
  if (text.classList.contains("plain")) {
    text.classList.remove("plain");
    text.replaceChildren();
  }
  let same = 0;
  while (same < html.length && html[same] === article.blocks[same]) same++;
  while (text.children.length > same) text.lastElementChild.remove();
  for (const block of html.slice(same)) text.append(element(block));
  article.blocks = html;
}

/** The server made this of the Markdown and let only harmless elements through (conversations/rendering). */
function element(block) {
  const template = document.createElement("template");
  template.innerHTML = block;
  for (const head of template.content.querySelectorAll(".code-head")) {
    const copy = button("Copy", () => copyWith(copy, head.parentElement.querySelector("code").textContent));
    head.append(copy);
  }
  return template.content;
}
