// Finding conversations by what was said in them: in place of the list, as long as something is asked for.

import { call } from "./api.js";
import { button, isPlain, make, say } from "./elements.js";

const PAUSE = 250; // ms without a key until it is asked for
const UNTITLED = "New conversation";

export class Search {
  /** `elements` are box, found, hint and instead (what is hidden meanwhile); `onOpen(conversation, message)`. */
  constructor({ box, found, hint, instead }, onOpen) {
    Object.assign(this, { box, found, hint, instead, onOpen });
    this.timer = null;
    this.next = null;
    this.more = button("Show more", () => this.#page(this.next), "quiet");
    found.after(this.more);
    this.#show([]);
    box.addEventListener("input", () => this.#soon());
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.clear();
      else if (event.key === "Enter") this.found.querySelector("a")?.click();
      else return;
      event.preventDefault();
    });
    found.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link || !isPlain(event)) return;
      event.preventDefault();
      onOpen(link.dataset.conversation, link.dataset.message ?? null);
    });
  }

  clear() {
    this.box.value = "";
    this.#soon(0);
  }

  get #query() {
    return this.box.value.trim();
  }

  #soon(pause = PAUSE) {
    clearTimeout(this.timer);
    if (this.#query) this.timer = setTimeout(() => this.#ask(), pause);
    else this.#show([]);
  }

  async #ask() {
    await this.#page(`search/?limit=20&q=${encodeURIComponent(this.#query)}`, { first: true });
  }

  async #page(address, { first = false } = {}) {
    const query = this.#query;
    let page;
    try {
      page = await call("GET", address);
    } catch (problem) {
      if (query === this.#query) this.#show([], problem.message);
      return;
    }
    if (query !== this.#query) return; // something else is asked for by now
    this.next = page.next;
    const rows = page.results.map(row);
    if (first) this.#show(rows, rows.length ? "" : "Nothing found.");
    else this.found.append(...rows);
    this.more.hidden = !page.next;
  }

  #show(rows, sentence = "") {
    const searching = Boolean(this.#query);
    for (const element of this.instead) element.hidden = searching;
    this.found.hidden = !searching;
    this.more.hidden = true;
    this.hint.hidden = !sentence;
    say(this.hint, sentence);
    this.found.replaceChildren(...rows);
  }
}

function row({ conversation, title, message, excerpt }) {
  const about = { href: `/c/${conversation.id}/`, "data-conversation": conversation.id };
  if (message) about["data-message"] = message;
  const lines = [make("span.found-title", { dir: "auto" }, ...(title.length ? pieces(title) : [UNTITLED]))];
  if (conversation.archived) lines.push(make("span.found-where", {}, "Archived"));
  if (excerpt.length) lines.push(make("span.found-text", { dir: "auto" }, ...pieces(excerpt)));
  return make("li", {}, make("a", about, ...lines));
}

function pieces(list) {
  return list.map(({ text, match }) => (match ? make("mark", {}, text) : text));
}
