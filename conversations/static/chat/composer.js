// The box people write in.

import { drafts } from "./kept.js";
import { ON_TOUCH, isSend, say } from "./elements.js";

const STOP_AGAIN = 2000; // ms
const TYPING = 300; // ms after the first letter: it was no slip
const TYPING_AGAIN = 10_000; // ms

export class Composer {
  /** `on.send(text)` says whether the text was taken; `on.stop()`; `on.typing()` now and then while somebody types. */
  constructor(form, on) {
    this.form = form;
    this.box = form.querySelector("textarea");
    this.sendButton = form.querySelector("#send");
    this.stopButton = form.querySelector("#stop");
    this.hint = form.querySelector(".hint");
    this.on = on;
    this.conversation = undefined; // none is open yet
    this.live = false;
    this.timer = 0;
    this.typing = 0; // the timer until it is told, and then until it is told again
    this.box.addEventListener("input", () => this.#changed());
    this.box.addEventListener("keydown", (event) => this.#key(event));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.stopButton.addEventListener("click", () => {
      if (document.activeElement === this.stopButton) this.focus(); // once disabled it would leave the keyboard nowhere
      this.stopButton.disabled = true; // once is enough; again if that went nowhere
      setTimeout(() => (this.stopButton.disabled = false), STOP_AGAIN);
      on.stop();
    });
    addEventListener("pagehide", () => this.#keep());
    addEventListener("resize", () => this.#grow());
  }

  /** The box of this conversation, with what was written in it before. */
  open(conversation) {
    this.#keep();
    this.conversation = conversation;
    this.box.value = drafts.get(conversation);
    clearTimeout(this.typing);
    this.typing = 0;
    this.#shown();
    this.focus();
  }

  /** The same box goes on as that of `conversation`, which has just been made. */
  moveTo(conversation) {
    drafts.set(this.conversation, "");
    this.conversation = conversation;
    this.#keep();
  }

  /** Puts `text` in, before what is there. */
  put(text) {
    this.box.value = this.box.value.trim() ? `${text}\n\n${this.box.value}` : text;
    this.#keep();
    this.#shown();
    this.focus();
  }

  focus() {
    // On a phone the keyboard would cover half of what the person came to read.
    if (!ON_TOUCH.matches) this.box.focus();
  }

  /** `live`: an answer is under way, so that the button stops it. */
  setLive(live) {
    if (live === this.live) return;
    const focused = document.activeElement === this.sendButton || document.activeElement === this.stopButton;
    this.live = live;
    this.stopButton.hidden = !live;
    this.sendButton.hidden = live;
    this.#advise("");
    if (focused) this.focus();
  }

  #submit() {
    const text = this.box.value;
    if (!text.trim()) return;
    if (this.live) {
      this.#advise("An answer is under way: wait for it, or stop it first. Your text stays here.");
      return;
    }
    if (!this.on.send(text)) {
      this.#advise("The message before is still on its way. Your text stays here.");
      return;
    }
    this.box.value = "";
    this.#keep();
    this.#shown();
  }

  #key(event) {
    if (!isSend(event)) return;
    event.preventDefault();
    this.#submit();
  }

  #changed() {
    this.#shown();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#keep(), 300);
    this.typing ||= setTimeout(() => this.#type(), TYPING);
  }

  #type() {
    if (!this.live && this.box.value.trim()) this.on.typing();
    this.typing = setTimeout(() => (this.typing = 0), TYPING_AGAIN);
  }

  #keep() {
    clearTimeout(this.timer);
    if (this.conversation !== undefined) drafts.set(this.conversation, this.box.value);
  }

  #shown() {
    this.sendButton.disabled = !this.box.value.trim();
    this.#advise("");
    this.#grow();
  }

  #grow() {
    this.box.style.height = "auto";
    this.box.style.height = `${this.box.scrollHeight + 2}px`;
  }

  #advise(sentence) {
    say(this.hint, sentence);
    this.hint.hidden = !sentence;
  }
}
