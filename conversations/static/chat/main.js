// The chat page: one socket, one open conversation, and what the person does.

import { AWAY, call, signIn, wish } from "./api.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversation, isLive } from "./conversation.js";
import { isPlain } from "./elements.js";
import { sayNotice, showConnection, startDrawer, startMenus } from "./frame.js";
import { uuid } from "./ids.js";
import { edits, forgetEverything, outbox, tab } from "./kept.js";
import { ConversationList } from "./list.js";
import { Management } from "./manage.js";
import { Messages } from "./messages.js";
import { Presets } from "./presets.js";
import { Search } from "./search.js";
import { Settings } from "./settings.js";
import { startWelcome } from "./welcome.js";

const UNSENT_STAYS = 10 * 60 * 1000; // ms after which an unsent message waits for a click instead of going by itself
const OTHER_TABS_OWN = 30 * 1000; // ms in which an unsent message is left to the tab it was written in
const RETRY_SUBSCRIBE = 1000; // ms
const MOST_PAGES = 50; // of earlier messages, read to get to one that was found
const SUBSCRIBE = "subscribe"; // the `id` of that frame
const site = document.title;
const $ = (selector) => document.querySelector(selector);

let conversation = new Conversation(null); // the open one; without an id it is made by its first message
let wanted = null; // the message of it that a search found and that is to be seen, until it is

const messages = new Messages($("#scroller"), $("#messages"), {
  regenerate: ({ id }) => wish(`messages/${id}/regenerate/`).catch(tell),
  goOn: ({ generation }) => wish(`generations/${generation.id}/continue/`).catch(refresh),
  edit,
  unedit: ({ id }) => outbox.all().forEach((message) => message.edits === id && outbox.take(message.client_id)),
  cost: ({ id }, planned) => call("GET", `messages/${id}/edit/?${new URLSearchParams(planned)}`),
  version: (id) => call("POST", `messages/${id}/show/`).then(subscribe).catch(tell),
  retry: (client_id) => retry(client_id),
  takeBack: (client_id) => takeBack(client_id, "", conversation.id),
  earlier: () => showEarlier().catch(tell),
});
const list = new ConversationList($("#conversations"), $("#more"), choose);
const archive = new ConversationList($("#archived"), $("#more-archived"), choose, { archived: true });
const management = new Management({
  changed: put,
  deleted: gone,
  restored: (restored) => {
    put(restored);
    open(restored.id);
  },
  problem: tell,
});
const search = new Search(
  { box: $("#search"), found: $("#found"), hint: $("#found-hint"), instead: [$("#listed")] },
  (id, message) => openAt(id, message),
);
const presets = new Presets($("#begin"));
const settings = new Settings($("#settings-dialog"), presets, saveSettings);
const composer = new Composer($("#composer"), { send, stop, typing });
const drawer = startDrawer();

const connection = new Connection({
  frame: take,
  state: showConnection,
  signedOut: signIn,
  known: () => (conversation.live ? { [conversation.live.id]: conversation.live.seq } : {}),
  waiting: () => Boolean(conversation.live) || outbox.of(conversation.id).some((message) => !message.problem),
});

// What the server says.

const HANDLERS = {
  ready: arrived,
  error: refused,
  "conversation.updated": ({ conversation: changed }) => put(changed),
  "conversation.deleted": ({ conversation: id }) => gone(id),
  "message.created": (frame) => {
    const mine = outbox.get(frame.client_id);
    if (mine?.edits) edits.drop(mine.edits);
    outbox.take(frame.client_id);
    apply(frame);
  },
};

function take(frame) {
  (HANDLERS[frame.type] ?? apply)(frame);
}

function apply(frame) {
  if ((frame.conversation?.id ?? frame.conversation) !== conversation.id) return;
  const wasLive = Boolean(conversation.live);
  const changed = conversation.apply(frame);
  if (changed.ask) subscribe();
  // What can be done with every message depends on whether an answer is being written.
  if (changed.all || wasLive !== Boolean(conversation.live)) messages.show(conversation, outbox.of(conversation.id));
  else messages.update(conversation, changed.messages);
  if (frame.type === "snapshot") {
    showTitle(conversation.title);
    management.show(frame.conversation);
    messages.list.setAttribute("aria-busy", "false");
    if (wanted) reveal(wanted).catch(tell);
  }
  showState();
  if (wasLive && !conversation.live) announce("The answer is complete.");
}

/** The socket is signed in: what was missed while there was none is in the snapshot and the list. */
function arrived() {
  list.load().catch(tell);
  if ($("#archive-of").open) archive.load().catch(tell);
  subscribe();
  for (const message of outbox.all()) {
    const age = Date.now() - message.at;
    if (message.problem || (message.tab !== tab && age < OTHER_TABS_OWN)) continue;
    if (age < UNSENT_STAYS) deliver(message);
    else markUnsent(message, "It was written a while ago.");
  }
}

function refused({ code, detail, retryable, client_id, re }) {
  const message = outbox.get(client_id);
  if (code === "parent_stale") subscribe();
  if (message && (retryable || (message.edits && code !== "not_found"))) markUnsent(message, detail);
  else if (message) takeBack(client_id, detail, code === "not_found" ? null : message.conversation);
  else if (re !== SUBSCRIBE) sayNotice(detail);
  else if (retryable) setTimeout(subscribe, RETRY_SUBSCRIBE);
  else leave("There is no such conversation, or it is not yours.");
}

// What the person does.

/** It follows what is shown: if the conversation went on elsewhere, that is to be read first. */
function send(text) {
  if (isSomethingOnItsWay()) return false;
  sayNotice(""); // what was refused before was changed, or given up
  const message = { client_id: uuid(), conversation: conversation.id, text, at: Date.now(), tab };
  if (conversation.loaded) message.parent = conversation.last?.id ?? null;
  if (conversation.id === null) message.preset = presets.take();
  outbox.put(message);
  messages.show(conversation, outbox.of(conversation.id));
  messages.scrollToEnd();
  showState();
  deliver(message);
  return true;
}

/** Says `text` in place of `message`. What was refused and is sent again unchanged keeps its client_id. */
function edit({ id, parent }, text) {
  const before = edits.get(id);
  const client_id = before?.sent === text ? before.client_id : uuid();
  if (before?.client_id) outbox.take(before.client_id);
  if (isSomethingOnItsWay()) return false;
  const message = { client_id, conversation: conversation.id, text, parent, edits: id, at: Date.now(), tab };
  edits.put(id, { text, sent: text, client_id });
  outbox.put(message);
  messages.show(conversation, outbox.of(conversation.id));
  deliver(message);
  return true;
}

/** An edit that was refused waits in its editor and is in nobody's way. */
function isSomethingOnItsWay() {
  return outbox.of(conversation.id).some((message) => !(message.edits && message.problem));
}

/** Sends it if there is a connection; else `arrived` does. The same client_id twice is one message. */
async function deliver(message) {
  if (message.conversation === null) {
    if (!(message = await inNewConversation(message))) return;
  }
  const { client_id, text, parent } = message; // without a parent it follows the newest answer
  const branch = Boolean(message.edits);
  connection.send({ type: "send", conversation: message.conversation, client_id, text, parent, branch });
}

const being = new Set(); // client_ids whose conversation is just being made

async function inNewConversation(message) {
  if (being.has(message.client_id)) return null;
  being.add(message.client_id);
  try {
    const made = await call("POST", "conversations/", message.preset ? { preset: message.preset } : {});
    const placed = { ...message, conversation: made.id };
    outbox.put(placed);
    put(made);
    if (conversation.id === null) becomes(made.id);
    return placed;
  } catch (problem) {
    if (problem.errors?.preset) takeBack(message.client_id, problem.message, null);
    else if (problem.code !== AWAY.code) markUnsent(message, problem.message); // else it goes when the connection is back
    return null;
  } finally {
    being.delete(message.client_id);
  }
}

/** The new conversation that is open has got its id. */
function becomes(id) {
  history.replaceState(null, "", `/c/${id}/`);
  conversation = new Conversation(id);
  composer.moveTo(id);
  mark(id);
  subscribe();
}

function markUnsent(message, problem) {
  outbox.put({ ...message, problem });
  if (message.conversation === conversation.id) messages.show(conversation, outbox.of(conversation.id));
}

function retry(client_id) {
  const message = { ...outbox.get(client_id), problem: undefined, at: Date.now(), tab };
  outbox.put(message);
  messages.show(conversation, outbox.of(conversation.id));
  deliver(message);
}

/** The text goes back into the box of `where`, with the sentence that says what is wrong with it. */
function takeBack(client_id, sentence, where) {
  const message = outbox.get(client_id);
  outbox.take(client_id);
  if (where !== conversation.id) open(where);
  composer.put(message.text);
  messages.show(conversation, outbox.of(conversation.id));
  showState();
  if (sentence) sayNotice(sentence);
}

function stop() {
  const generation = conversation.live;
  if (!generation || connection.send({ type: "cancel", generation: generation.id })) return;
  call("POST", `generations/${generation.id}/cancel/`).catch(tell);
}

/** Its slot may be warm by the time the message is sent. */
function typing() {
  if (conversation.id) connection.send({ type: "typing", conversation: conversation.id });
}

async function showEarlier() {
  const first = conversation.messages[0];
  const wanted = conversation;
  const page = await call("GET", `conversations/${wanted.id}/messages/?html=true&cursor=${first.parent}`);
  if (wanted !== conversation) return;
  conversation.prepend(page.results, Boolean(page.next));
  messages.show(conversation, outbox.of(conversation.id));
}

// Which conversations there are, and which is open.

/** It is as it says now. */
function put(changed) {
  list.put(changed);
  archive.put(changed);
  if (changed.id !== conversation.id) return;
  conversation.settings = changed;
  showTitle(changed.title);
  management.show(changed);
}

/** A new conversation is made by its settings, as it is by its first message. */
async function saveSettings(fields) {
  const { id } = conversation;
  const changed = await call(id ? "PATCH" : "POST", id ? `conversations/${id}/` : "conversations/", fields);
  put(changed);
  if (conversation.id === null && !id) becomes(changed.id);
}

function gone(id) {
  list.remove(id);
  archive.remove(id);
  if (id === conversation.id) leave(management.deletes(id) ? "" : "This conversation was deleted.");
}

function choose(id) {
  if (id === conversation.id) drawer.close();
  else open(id);
}

function mark(id) {
  list.mark(id);
  archive.mark(id);
}

/** Opens the conversation `id`, or a new one (null), and puts it into the address unless that is where we come from. */
function open(id, { address = true } = {}) {
  if (conversation.id && connection.ready) connection.send({ type: "unsubscribe", conversation: conversation.id });
  conversation = new Conversation(id);
  wanted = null;
  if (address) history.pushState(null, "", id ? `/c/${id}/` : "/");
  messages.clear();
  messages.list.setAttribute("aria-busy", String(Boolean(id)));
  messages.show(conversation, outbox.of(id));
  composer.open(id);
  mark(id);
  showTitle(id ? list.title(id) || archive.title(id) : "");
  management.show(null);
  showState();
  sayNotice("");
  drawer.close();
  subscribe();
}

/** Opens the conversation `id` where `message` is, which a search found there. */
function openAt(id, message) {
  if (id !== conversation.id) open(id);
  else drawer.close();
  wanted = message;
  if (wanted && conversation.loaded) reveal(wanted).catch(tell);
}

/** Earlier messages are read until it is there. One on another branch is nowhere: then all of it has been read. */
async function reveal(message) {
  wanted = null;
  const where = conversation;
  for (let page = 0; page < MOST_PAGES && !messages.reveal(message) && where.earlier; page++) {
    await showEarlier();
    if (where !== conversation) return;
  }
}

function leave(sentence) {
  open(null);
  if (sentence) sayNotice(sentence);
}

function subscribe() {
  if (conversation.id) connection.send({ type: "subscribe", conversation: conversation.id, html: true, id: SUBSCRIBE });
}

function idInAddress() {
  return location.pathname.match(/^\/c\/([0-9a-f-]+)\/$/)?.[1] ?? null;
}

// What is shown beside the messages.

function showState() {
  composer.setLive(Boolean(conversation.live));
  const begun = conversation.id !== null || outbox.of(null).length > 0;
  $("#welcome").hidden = begun;
  $("#begin").hidden = begun;
  $("#settings").hidden = conversation.id !== null && !conversation.loaded; // what is set is not known yet
}

function showTitle(title) {
  $("#title").textContent = title || "New chat";
  document.title = title ? `${title} · ${site}` : site;
}

function announce(sentence) {
  $("#announcer").textContent = sentence;
}

function tell(problem) {
  sayNotice(problem.message);
}

/** What is shown may be out of date: that is why it was refused. */
function refresh(problem) {
  tell(problem);
  subscribe();
}

startMenus();
startWelcome((text) => composer.put(text));
$("#new-chat").addEventListener("click", (event) => {
  if (!isPlain(event)) return;
  event.preventDefault();
  open(null);
});
$("#archive-of").addEventListener("toggle", (event) => event.target.open && archive.load().catch(tell));
$("#settings").addEventListener("click", () => settings.open(conversation.settings, conversation.tokens).catch(tell));
$("#sign-out").addEventListener("submit", forgetEverything);
addEventListener("popstate", () => open(idInAddress(), { address: false }));
presets.load().catch(tell);
open(idInAddress(), { address: false });
