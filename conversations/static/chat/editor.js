// The box in which a message is said otherwise. What is written in it is kept in this browser until the server has it.

import { button, isSend, make, say } from "./elements.js";
import { edits } from "./kept.js";
import { cost } from "./wording.js";

const LONGEST = Number(document.body.dataset.longestMessage); // code points; what is longer is refused when it is sent
const PAUSE = 400; // ms without a key until the cost is asked for
const WAIT = "An answer is under way: wait for it, or stop it first. Your text stays here.";
const ON_ITS_WAY = "The message before is still on its way. Your text stays here.";

/**
 * For the message of `article`. `on.edit(message, text)` says whether the text was taken, `on.cost(message, planned)`
 * gives what it would cost, `on.unedit(message)` takes back what was refused; `opened(isOpen)` is told.
 */
export function editorFor(article, on, opened) {
  const box = make("textarea", { rows: "3", dir: "auto", "aria-label": "Say it otherwise", input: changed });
  const hint = make("p.muted", {}, "What follows stays as another version; the model reads on from here.");
  const price = make("p.muted.cost", { role: "status" });
  const problem = make("p.notice.error", { role: "alert" });
  const send = make("button.primary", { type: "submit" }, "Send");
  const cancel = button("Cancel", () => close());
  const form = make("form.editor", { submit: ask }, box, problem, hint, price, make("div.actions", {}, send, cancel));
  let busy = false;
  let sending = false;
  let refusal; // as it was shown last
  let timer = 0;
  form.hidden = true;
  complain("");
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !sending) close();
    else if (isSend(event)) ask(event);
  });

  function show(text) {
    form.hidden = false;
    box.value = text;
    opened(true);
    tellCost();
  }

  function close() {
    clearTimeout(timer);
    edits.drop(article.message.id);
    on.unedit(article.message);
    complain("");
    opened(false); // while the keyboard is still in here
    form.hidden = true;
  }

  function changed() {
    clearTimeout(timer);
    timer = setTimeout(tellCost, PAUSE);
    edits.put(article.message.id, { ...edits.get(article.message.id), text: box.value });
  }

  function ask(event) {
    event.preventDefault();
    if (sending || !box.value.trim()) return;
    if (busy) complain(WAIT);
    else if (!on.edit(article.message, box.value)) complain(ON_ITS_WAY);
  }

  function complain(sentence) {
    say(problem, sentence);
    problem.hidden = !sentence;
  }

  /** Nobody needs it to go on: where it cannot be had nothing is said. */
  async function tellCost() {
    const text = box.value;
    const plan = planned(text);
    const fits = text.trim() && plan.characters <= LONGEST;
    const found = fits && !busy ? await on.cost(article.message, plan).catch(() => null) : null;
    if (text === box.value) say(price, found ? cost(found) : "");
  }

  function planned(text) {
    const [now, then] = [[...article.message.text], [...text]];
    let same = 0;
    while (same < now.length && now[same] === then[same]) same++;
    return { same, characters: then.length };
  }

  /** What was written before and the server does not have is there again. */
  form.restore = () => {
    const kept = edits.get(article.message.id);
    if (kept) show(kept.text);
  };
  form.open = () => {
    show(article.message.text);
    box.focus();
  };
  /** `outgoing`: the edit on its way, or refused; `live`: whether an answer is being written. */
  form.update = (outgoing, live) => {
    busy = live;
    sending = Boolean(outgoing && !outgoing.problem);
    if (outgoing && form.hidden) show(outgoing.text);
    if (outgoing?.problem !== refusal) complain(outgoing?.problem ?? "");
    refusal = outgoing?.problem;
    box.readOnly = sending;
    send.disabled = live || sending;
    say(send, sending ? "Sending" : "Send");
  };
  return form;
}
