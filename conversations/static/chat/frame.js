// What surrounds the conversation: the notice, the connection's state, the drawer of small screens, menus and dialogs.

import { say } from "./elements.js";

const PATIENCE = 2000; // ms without a connection before anybody is told: most drops are over by then
const $ = (selector) => document.querySelector(selector);

/** A sentence above the box until it is closed or the next one comes; empty takes it away. */
export function sayNotice(sentence) {
  say($("#notice-text"), sentence);
  $("#notice").hidden = !sentence;
}

let timer = 0;

export function showConnection(state) {
  clearTimeout(timer);
  if (state === "online") set("online");
  else if (document.body.dataset.connection !== "offline") timer = setTimeout(() => set("offline"), PATIENCE);
}

function set(state) {
  document.body.dataset.connection = state;
  say($("#connection"), state === "offline" ? "Reconnecting…" : "");
}

/** The list of conversations, which is a drawer where the screen is small. */
export function startDrawer() {
  const opener = $("#open-drawer");
  const sidebar = $("#sidebar");
  const set = (isOpen) => {
    document.body.dataset.drawer = isOpen ? "open" : "closed";
    opener.setAttribute("aria-expanded", String(isOpen));
    $("#main").inert = isOpen;
  };
  const close = () => {
    if (document.body.dataset.drawer !== "open") return;
    const inside = sidebar.contains(document.activeElement);
    set(false);
    if (inside) opener.focus();
  };
  opener.addEventListener("click", () => {
    set(true);
    sidebar.querySelector("a, button").focus();
  });
  $("#close-drawer").addEventListener("click", close);
  $("#backdrop").addEventListener("click", close);
  addEventListener("keydown", (event) => event.key === "Escape" && close());
  matchMedia("(min-width: 860px)").addEventListener("change", close);
  return { close };
}

/** `<details class="menu">` closes like a menu: by Escape, by a click elsewhere, by choosing. */
export function startMenus() {
  const menus = [...document.querySelectorAll("details.menu")];
  addEventListener("click", (event) => {
    for (const menu of menus) {
      const summary = menu.querySelector("summary");
      if (menu.open && !summary.contains(event.target)) menu.open = false;
    }
  });
  addEventListener("keydown", (event) => {
    const open = menus.find((menu) => menu.open);
    if (event.key !== "Escape" || !open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });
  $("#close-notice").addEventListener("click", () => sayNotice(""));
}

/** Shows a dialog; `done` gets the value of its field once its form is confirmed. */
export function openDialog(dialog, { value = "", done }) {
  const field = dialog.querySelector("input");
  if (field) field.value = value;
  dialog.returnValue = "";
  dialog.onclose = () => dialog.returnValue === "yes" && done(field?.value.trim() ?? "");
  dialog.showModal();
  field?.select();
}
