// The page's own reducer, for tests: a line of JSON in for each frame, a line out with what the page would show then.

import { createInterface } from "node:readline";

const { Conversation } = await import(process.argv[2]);
const pages = new Map();

for await (const line of createInterface({ input: process.stdin })) {
  const { page, conversation, frame } = JSON.parse(line);
  if (!pages.has(page)) pages.set(page, new Conversation(conversation));
  const shown = pages.get(page);
  const { ask = false } = shown.apply(frame);
  process.stdout.write(JSON.stringify({ ask, messages: shown.messages }) + "\n");
}
