// Copying to the clipboard, also on plain http, where `navigator.clipboard` does not exist.

/** Copies `text`; resolves to whether that worked. */
export async function copy(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Refused, as in a page without focus: the old way may still work.
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.readOnly = true;
  area.className = "visually-hidden";
  // Inside an open dialog only what is in it can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  const focused = document.activeElement;
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

/** Copies and says so on the button for two seconds. */
export async function copyWith(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  button.textContent = (await copy(text)) ? "Copied" : "Select and copy";
  clearTimeout(button.timer);
  button.timer = setTimeout(() => (button.textContent = label), 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-copy]");
  if (button) copyWith(button, button.parentElement.querySelector("code").textContent);
});
