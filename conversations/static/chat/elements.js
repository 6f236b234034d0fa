// Making and changing elements.

/** `make("button.quiet", {type: "button"}, "Copy")` */
export function make(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag);
  element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function button(label, click, kind = "quiet") {
  return make(`button.${kind}`, { type: "button", click }, label);
}

/** Whether a click is for the page: one that asks for another tab or window is the browser's. */
export function isPlain(event) {
  return !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
}

export const ON_TOUCH = matchMedia("(pointer: coarse)"); // there is no Shift+Enter: Enter makes a line, the button sends

/** Whether a key in a box with several lines sends what is in it. */
export function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && !ON_TOUCH.matches;
}

/** Sets the text only where it differs: an unchanged one keeps its selection and is not announced again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
