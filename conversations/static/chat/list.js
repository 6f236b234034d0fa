// The list of conversations beside the open one.

import { call } from "./api.js";
import { isPlain, make, say } from "./elements.js";

const UNTITLED = "New conversation";

export class ConversationList {
  constructor(list, more, onOpen) {
    this.list = list;
    this.more = more;
    this.rows = new Map(); // by id
    this.open = null;
    this.next = null;
    this.empty = list.parentElement.querySelector(".empty");
    list.addEventListener("click", (event) => {
      const link = event.target.closest("a");
      if (!link || !isPlain(event)) return;
      event.preventDefault();
      onOpen(link.dataset.conversation);
    });
    more.addEventListener("click", () => this.#page(this.next));
  }

  /** Reads the newest again: changes made while the connection was away are in there. */
  async load() {
    await this.#page("conversations/");
  }

  put({ id, title, updated_at }) {
    const row = this.rows.get(id) ?? this.#row(id);
    row.updated = updated_at;
    say(row.link, title || UNTITLED);
    row.link.title = title;
    this.#sort();
  }

  remove(id) {
    this.rows.get(id)?.item.remove();
    this.rows.delete(id);
    this.empty.hidden = this.rows.size > 0;
  }

  mark(id) {
    this.open = id;
    for (const [key, { link }] of this.rows) this.#markRow(key, link);
  }

  title(id) {
    return this.rows.get(id)?.link.title ?? "";
  }

  async #page(address) {
    const { results, next } = await call("GET", address);
    results.forEach((conversation) => this.put(conversation));
    this.next = next;
    this.more.hidden = !next;
    this.empty.hidden = this.rows.size > 0;
  }

  #row(id) {
    const link = make("a", { href: `/c/${id}/`, "data-conversation": id, dir: "auto" });
    const row = { item: make("li", {}, link), link, updated: "" };
    this.rows.set(id, row);
    this.#markRow(id, link);
    this.empty.hidden = true;
    return row;
  }

  #markRow(id, link) {
    if (id === this.open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }

  /** Newest first; times are UTC in one format, and sort as text. */
  #sort() {
    const sorted = [...this.rows.values()].sort((a, b) => (a.updated < b.updated ? 1 : -1));
    sorted.forEach(({ item }, at) => this.list.children[at] === item || this.list.insertBefore(item, this.list.children[at] ?? null));
  }
}
