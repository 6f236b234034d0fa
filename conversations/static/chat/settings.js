// The settings of a conversation: what its next answers are made with. The server checks them; its sentences stand
// beside the fields, and what was typed stays.

import { call } from "./api.js";
import { make, say } from "./elements.js";
import { fill } from "./presets.js";
import { replay } from "./wording.js";

const $ = (selector) => document.querySelector(selector);
const DEFAULT = ""; // of every field

export class Settings {
  /** `save(fields)` is called with what is set, and may throw a Problem. */
  constructor(dialog, presets, save) {
    this.dialog = dialog;
    this.form = dialog.querySelector("form");
    this.presets = presets;
    this.save = save;
    this.models = [];
    this.before = {}; // what was set when the dialog was opened
    this.form.addEventListener("submit", (event) => this.#submit(event));
    this.form.addEventListener("input", () => this.#look());
    $("#settings-preset").addEventListener("change", (event) => this.#choose(event.target.value));
    $("#set-model").addEventListener("change", () => this.#offerThinking(this.#field("params.thinking").value));
    $("#reset-settings").addEventListener("click", () => this.#show({ params: {} }));
    $("#cancel-settings").addEventListener("click", () => dialog.close());
    $("#save-preset").addEventListener("click", () => this.#savePreset());
    $("#change-preset").addEventListener("click", () => this.#changePreset());
    $("#delete-preset").addEventListener("click", () => this.#deletePreset());
    $("#set-name").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault(); // Enter in here saves the preset, not the conversation
      this.#savePreset();
    });
  }

  /** Shows what `conversation` has; `tokens` of it are read again where the model must begin anew. */
  async open(conversation, tokens) {
    [this.models] = await Promise.all([call("GET", "models/"), this.presets.load()]);
    this.tokens = tokens;
    this.before = conversation;
    this.#listPresets("");
    this.#show(conversation);
    $("#set-name").value = "";
    $(".save-preset").open = false;
    say($("#preset-done"), "");
    this.dialog.showModal();
    this.form.querySelector(".settings").scrollTop = 0;
    this.#field("system_prompt").focus();
  }

  #field(name) {
    return this.form.elements.namedItem(name);
  }

  get #fields() {
    return [...this.form.elements].filter((field) => field.name);
  }

  get #parameters() {
    return this.#fields.filter((field) => field.dataset.kind);
  }

  #show({ system_prompt = "", model = "", params }) {
    this.#field("system_prompt").value = system_prompt;
    this.#listModels(model);
    this.#offerThinking(params.thinking);
    for (const field of this.#parameters) {
      if (field.dataset.kind !== "choice") field.value = written(params[field.name.replace("params.", "")], field);
    }
    this.#complain({});
    this.#look();
  }

  #listModels(chosen) {
    const names = this.models.map((model) => model.id);
    if (chosen && !names.includes(chosen)) names.push(chosen);
    const options = names.map((name) => make("option", { value: name }, name));
    this.#field("model").replaceChildren(make("option", { value: DEFAULT }, "Whichever is free"), ...options);
    this.#field("model").value = chosen;
    $("#settings-model").hidden = names.length < 2 && !chosen;
  }

  /** Only what the chosen model has, and what is set. */
  #offerThinking(chosen = DEFAULT) {
    const model = this.#field("model").value;
    const offered = new Set(this.models.filter(({ id }) => !model || id === model).flatMap(({ thinking }) => thinking));
    const field = this.#field("params.thinking");
    if (chosen) offered.add(chosen); // while no server is there to offer it
    const options = [...offered].map((value) => make("option", { value }, value));
    field.replaceChildren(make("option", { value: DEFAULT }, "the model's own"), ...options);
    field.value = chosen;
    field.closest(".field").hidden = !offered.size;
  }

  #listPresets(chosen) {
    fill($("#settings-preset"), this.presets.all, "Choose", chosen);
    $("#settings-presets").hidden = !this.presets.all.length;
    $("#own-preset").hidden = !this.presets.get(chosen)?.mine;
  }

  #choose(id) {
    const preset = this.presets.get(id);
    $("#own-preset").hidden = !preset?.mine;
    if (preset) this.#show(preset);
  }

  /** What is in the fields; null: the default. */
  get #values() {
    const params = {};
    for (const field of this.#parameters) params[field.name.replace("params.", "")] = meant(field);
    return { system_prompt: this.#field("system_prompt").value, model: this.#field("model").value, params };
  }

  /** Of these what is not as it was: what another device changed meanwhile stays. */
  get #changes() {
    const { params, ...rest } = this.#values;
    const { before } = this;
    const changed = (values, old, none) =>
      Object.fromEntries(Object.entries(values).filter(([name, value]) => !same(value, old[name] ?? none)));
    return { ...changed(rest, before, ""), params: changed(params, before.params, null) };
  }

  /** Says what a change costs before it is made. */
  #look() {
    const { system_prompt, model, params } = this.#values;
    const { before } = this;
    const other = ["system_prompt", "model"].filter((name) => (before[name] ?? "") !== { system_prompt, model }[name]);
    const thinks = (before.params?.thinking ?? null) !== params.thinking;
    const cost = this.tokens && (other.length || thinks) ? replay(other[0] ?? "thinking", this.tokens) : "";
    say($("#settings-cost"), cost);
    $("#settings-cost").hidden = !cost;
  }

  async #submit(event) {
    event.preventDefault();
    if (await this.#tried(() => this.save(this.#changes))) this.dialog.close();
  }

  async #savePreset() {
    const name = this.#field("name").value;
    const done = (made) => `Saved as the preset “${made.name}”.`;
    if (await this.#stored(() => this.presets.create({ name, ...this.#values }), done)) {
      this.#field("name").value = "";
      $(".save-preset").open = false;
    }
  }

  async #changePreset() {
    const preset = this.presets.get($("#settings-preset").value);
    const done = (made) => `The preset “${made.name}” was changed.`;
    await this.#stored(() => this.presets.change(preset.id, this.#values), done);
  }

  async #deletePreset() {
    const preset = this.presets.get($("#settings-preset").value);
    if (await this.#tried(() => this.presets.remove(preset.id))) {
      this.#listPresets("");
      say($("#preset-done"), `The preset “${preset.name}” was deleted.`);
    }
  }

  /** Whether a preset was stored by `step`; says that it is `done`, and what the server warns of. */
  #stored(step, done) {
    return this.#tried(async () => {
      const made = await step();
      this.#listPresets(made.id);
      say($("#preset-done"), [done(made), ...made.warnings].join(" "));
    });
  }

  /** Whether `step` was done; what is wrong is said beside its field, what was typed stays. */
  async #tried(step) {
    this.#complain({});
    say($("#preset-done"), "");
    try {
      await step();
      return true;
    } catch (problem) {
      this.#complain(problem.errors ?? {}, problem.message);
      return false;
    }
  }

  #complain(errors, sentence = "") {
    let said = false;
    for (const field of this.#fields) {
      const wrong = (errors[field.name] ?? []).join(" ");
      const list = field.closest(".field, .save-preset").querySelector(".errorlist");
      say(list, wrong);
      if (wrong) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
      if (wrong && !said) field.focus();
      said ||= Boolean(wrong);
    }
    const rest = said ? "" : sentence;
    say($("#settings-problem"), rest);
    $("#settings-problem").hidden = !rest;
    if (rest) $("#settings-problem").scrollIntoView({ block: "nearest" });
  }
}

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** A parameter as its field shows it. */
function written(value, { dataset }) {
  if (value === undefined || value === null) return "";
  return dataset.kind === "strings" ? value.map(escaped).join("\n") : String(value);
}

/** What is in a field, as the API takes it. What is no number goes as it is: the server says what it must be. */
function meant({ value, dataset }) {
  const typed = dataset.kind === "strings" ? value : value.trim();
  if (!typed) return null;
  if (dataset.kind === "strings") return typed.split("\n").filter(Boolean).map(unescaped);
  if (dataset.kind !== "number") return typed;
  const number = Number(typed.replace(",", "."));
  return Number.isFinite(number) ? number : typed;
}

function escaped(text) {
  return text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
}

function unescaped(text) {
  return text.replace(/\\(n|\\)/g, (_, what) => (what === "n" ? "\n" : "\\"));
}
