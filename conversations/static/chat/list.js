// A list of conversations beside the open one: those in use, or those that are archived.

import { call } from "./api.js";
import { isPlain, make, say } from "./elements.js";

const UNTITLED = "New conversation";

export class ConversationList {
  constructor(list, more, onOpen, { archived = false } = {}) {
    this.list = list;
    this.more = more;
    this.archived = archived;
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

  /** Reads the first of them again: changes made while the connection was away are in there. */
  async load() {
    const read = await this.#page(`conversations/?archived=${this.archived}`);
    const ids = new Set(read.map(({ id }) => id));
    const last = read.at(-1);
    for (const [id, row] of this.rows) {
      if (!ids.has(id) && (!this.next || before(row, place(last)))) this.remove(id);
    }
  }

  /** Shows it as it is now; one that belongs into the other list leaves this one. */
  put(conversation) {
    const { id, title, pinned, archived } = conversation;
    if (archived !== this.archived) {
      this.remove(id);
      return;
    }
    const row = this.rows.get(id) ?? this.#row(id);
    Object.assign(row, place(conversation));
    say(row.name, title || UNTITLED);
    row.link.title = title;
    row.link.classList.toggle("pinned", pinned);
    say(row.mark, pinned ? " (pinned)" : "");
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
    return results;
  }

  #row(id) {
    const name = make("span", {});
    const mark = make("span.visually-hidden");
    const link = make("a", { href: `/c/${id}/`, "data-conversation": id, dir: "auto" }, name, mark);
    const row = { item: make("li", {}, link), link, name, mark, pinned: false, updated: "" };
    this.rows.set(id, row);
    this.#markRow(id, link);
    this.empty.hidden = true;
    return row;
  }

  #markRow(id, link) {
    if (id === this.open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }

  #sort() {
    const sorted = [...this.rows.values()].sort((a, b) => (before(a, b) ? -1 : 1));
    sorted.forEach(({ item }, at) => this.list.children[at] === item || this.list.insertBefore(item, this.list.children[at] ?? null));
  }
}

function place({ pinned, updated_at }) {
  return { pinned, updated: updated_at };
}

/** Pinned ones first, each newest first; times are UTC in one format, and sort as text. */
function before(a, b) {
  return a.pinned === b.pinned ? a.updated > b.updated : a.pinned;
}
