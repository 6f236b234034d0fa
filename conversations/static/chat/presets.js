// Presets: those a person can choose from, and the one that the next new conversation begins with.

import { call } from "./api.js";
import { make } from "./elements.js";
import { drafts } from "./kept.js";

const CHOSEN = "preset of the new one"; // kept like a draft, through reloads

export class Presets {
  /** `chooser`: the row beside the box of a new conversation. */
  constructor(chooser) {
    this.chooser = chooser;
    this.select = chooser.querySelector("select");
    this.all = [];
    this.select.addEventListener("change", () => drafts.set(CHOSEN, this.select.value));
  }

  async load() {
    this.all = await call("GET", "presets/");
    fill(this.select, this.all, "None", drafts.get(CHOSEN));
    this.chooser.classList.toggle("none", !this.all.length);
  }

  get(id) {
    return this.all.find((preset) => preset.id === id);
  }

  /** The chosen one, once: the next conversation begins with none. */
  take() {
    const { value } = this.select;
    this.select.value = "";
    drafts.set(CHOSEN, "");
    return value || undefined;
  }

  async create(fields) {
    const made = await call("POST", "presets/", fields);
    await this.load();
    return made;
  }

  async change(id, fields) {
    const changed = await call("PATCH", `presets/${id}/`, fields);
    await this.load();
    return changed;
  }

  async remove(id) {
    await call("DELETE", `presets/${id}/`);
    await this.load();
  }
}

/** Options for `presets` after `none`, those for everybody apart; `chosen` is chosen if it is there. */
export function fill(select, presets, none, chosen) {
  const option = ({ id, name }) => make("option", { value: id }, name);
  const groups = [
    ["Yours", presets.filter((preset) => preset.mine)],
    ["For everybody", presets.filter((preset) => !preset.mine)],
  ].filter(([, members]) => members.length);
  const shown = groups.map(([label, members]) => make("optgroup", { label }, ...members.map(option)));
  select.replaceChildren(make("option", { value: "" }, none), ...shown);
  select.value = presets.some((preset) => preset.id === chosen) ? chosen : "";
}
