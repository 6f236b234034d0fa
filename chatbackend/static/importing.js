// Importing conversations from a file: the file itself is sent, and what came of it is said.

const LONGEST = 32 * 1024 * 1024; // bytes, as conversations.transfer.files has it: a longer one would be cut off unsaid
const AWAY = "The site does not answer at the moment. Nothing was changed: try again.";

const form = document.querySelector("#import");
const file = form.querySelector("input[type=file]");
const button = form.querySelector("button");
const result = document.querySelector("#import-result");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const [chosen] = file.files;
  if (chosen.size > LONGEST) {
    say(`This file has ${inMegabytes(chosen.size)} MB; ${inMegabytes(LONGEST)} MB are allowed: export less at once.`, false);
    return;
  }
  button.disabled = true;
  say("Importing…", true);
  try {
    const { detail, imported } = await send(chosen);
    say(detail, imported !== undefined);
  } catch {
    say(AWAY, false);
  } finally {
    button.disabled = false;
  }
});

async function send(chosen) {
  const token = form.querySelector("[name=csrfmiddlewaretoken]").value;
  const headers = { "Content-Type": "application/octet-stream", "X-CSRFToken": token, Accept: "application/json" };
  const response = await fetch(form.action, { method: "POST", headers, body: chosen });
  return response.json();
}

function say(sentence, well) {
  result.textContent = sentence;
  result.className = well ? "notice" : "notice error";
  result.hidden = false;
}

function inMegabytes(bytes) {
  return Math.ceil(bytes / 1024 / 1024);
}
