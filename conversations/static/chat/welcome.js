// The card of an account that has nothing in it yet.

import { call } from "./api.js";
import { say } from "./elements.js";

/** `use(text)` puts an example into the box. */
export function startWelcome(use) {
  const card = document.querySelector("#welcome");
  for (const example of card.querySelectorAll("[data-example]")) {
    example.addEventListener("click", () => use(example.textContent.trim()));
  }
  const invite = card.querySelector("#invite");
  invite?.addEventListener("click", () => showInvitation(card, invite));
}

async function showInvitation(card, invite) {
  invite.disabled = true;
  try {
    const { link, days, hint } = await call("POST", "/invite/");
    say(card.querySelector("#invite-link code"), link);
    say(card.querySelector("#invite-terms"), `For one person, within ${days} days. ${hint}`);
    card.querySelector("#invite-link").hidden = false;
    say(card.querySelector("#invite-problem"), "");
    card.querySelector("#invite-link button").focus();
  } catch (problem) {
    say(card.querySelector("#invite-problem"), problem.message);
  } finally {
    invite.disabled = false;
  }
}
