// What has just been done, for as long as it can be undone.

import { button, make } from "./elements.js";

const shown = document.querySelector("#toasts");

/** Says `sentence` for so many `seconds`, beside a button that calls `undo`. */
export function offer(sentence, seconds, undo) {
  const undoing = button("Undo", () => {
    away();
    undo();
  });
  const closing = button("×", away, "quiet.icon");
  closing.setAttribute("aria-label", "Close this message");
  const toast = make("div.toast", {}, make("span", { dir: "auto" }, sentence), undoing, closing);
  const timer = setTimeout(away, seconds * 1000);
  shown.append(toast);

  function away() {
    clearTimeout(timer);
    const focused = toast.contains(document.activeElement);
    toast.remove();
    if (focused) document.querySelector("#text").focus(); // the keyboard would be nowhere
  }
}
