// What is done with a conversation as a whole: naming it, keeping it in sight or out of it, taking it along, deleting it.

import { call } from "./api.js";
import { say } from "./elements.js";
import { openDialog } from "./frame.js";
import { offer } from "./toasts.js";

const UNDO = 28; // seconds; the server keeps it for 30
const $ = (selector) => document.querySelector(selector);

export class Management {
  /** `on.changed(conversation)` after each change, `on.deleted(id)`, `on.restored(conversation)`, `on.problem(problem)`. */
  constructor(on) {
    this.on = on;
    this.shown = null;
    this.deleting = new Set(); // by this tab
    $("#rename").addEventListener("click", () => this.#rename());
    $("#pin").addEventListener("click", () => this.#change({ pinned: !this.shown.pinned }));
    $("#archive").addEventListener("click", () => this.#archive());
    $("#delete").addEventListener("click", () => this.#try(() => this.#delete(this.shown)));
  }

  /** The conversation that is open, as the server has it; null while there is none, or it is not known yet. */
  show(conversation) {
    this.shown = conversation;
    const items = "#conversation-menu .menu-items > :not(#settings)"; // a new one has settings, too
    for (const item of document.querySelectorAll(items)) item.hidden = !conversation;
    $("#in-archive").hidden = !conversation?.archived;
    if (!conversation) return;
    say($("#pin"), conversation.pinned ? "Unpin" : "Pin");
    say($("#archive"), conversation.archived ? "Unarchive" : "Archive");
    for (const form of ["markdown", "json"]) {
      $(`#export-${form}`).href = `/api/v1/conversations/${conversation.id}/export/?as=${form}`;
    }
  }

  /** Whether it was this tab that deleted it. */
  deletes(id) {
    return this.deleting.has(id);
  }

  #rename() {
    const { title } = this.shown;
    openDialog($("#rename-dialog"), { value: title, done: (title) => this.#change({ title }) });
  }

  async #archive() {
    const { id, archived } = this.shown;
    if (!(await this.#change({ archived: !archived })) || archived) return;
    offer("Archived.", UNDO, () => this.#try(async () => this.on.changed(await change(id, { archived: false }))));
  }

  async #delete({ id, title }) {
    this.deleting.add(id);
    try {
      await call("DELETE", `conversations/${id}/`);
    } catch (problem) {
      this.deleting.delete(id);
      throw problem;
    }
    this.on.deleted(id);
    offer(title ? `Deleted “${title}”.` : "Deleted.", UNDO, () => this.#try(() => this.#restore(id)));
  }

  async #restore(id) {
    const restored = await call("POST", `conversations/${id}/restore/`);
    this.deleting.delete(id);
    this.on.restored(restored);
  }

  /** Whether it went well. */
  #change(fields) {
    const { id } = this.shown;
    return this.#try(async () => this.on.changed(await change(id, fields)));
  }

  async #try(what) {
    try {
      await what();
      return true;
    } catch (problem) {
      this.on.problem(problem);
      return false;
    }
  }
}

function change(id, fields) {
  return call("PATCH", `conversations/${id}/`, fields);
}
