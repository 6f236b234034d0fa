// The sentences people read about an answer: where it stands, why it took longer, how it ended.

const CAUSES = {
  expired: "it had been idle for so long that its place was given up",
  evicted: "its place had been given to somebody else",
  server_restarted: "the model server had been restarted",
  cache_lost: "the model server no longer had it in memory",
  moved: "it moved to another model server",
  trimmed: "it had grown longer than the model can remember",
  branch: "it goes on from an earlier message",
  template: "the model is shown its earlier answers in another form",
  foreign: "something else had used its place",
  settings: "its settings were changed",
};

const SLOW = 3; // seconds
const MAX_TOKENS = 512; // of an answer whose conversation sets no other limit
const MANY = 500; // tokens, where it is not known how long they take

const number = new Intl.NumberFormat("en-US");

/** What a live generation is doing, as long as no text comes. */
export function progress({ status, place, estimate, reason, prefill }) {
  if (status === "queued") {
    if (reason) return `Waiting: ${reason.replace(/\.$/, "")}`; // three dots follow
    if (!place) return "Waiting";
    return estimate ? `Place ${place} in the queue, about ${range(estimate)}` : `Place ${place} in the queue`;
  }
  if (!prefill) return "Starting";
  const reading = `eading ${number.format(prefill.processed)} of ${number.format(prefill.total)}`;
  return prefill.replay_cause ? `Picking up the conversation: r${reading}` : `R${reading}`;
}

/** "20 to 40 s", from two minutes on in minutes. */
function range({ low, high }) {
  const [unit, name] = high < 120 ? [1, "s"] : [60, "min"];
  const [from, to] = [Math.round(low / unit), Math.round(high / unit)];
  return from === to ? `${to} ${name}` : `${from} to ${to} ${name}`;
}

/** What is worth knowing of an answer that has ended; empty when nothing is. */
export function note({ status, finish_reason, timings, usage, params }) {
  const said = [];
  if (status === "cancelled") said.push("Stopped.");
  if (finish_reason === "length") {
    const tokens = usage?.completion_tokens;
    const full = params && tokens < (params.max_tokens ?? MAX_TOKENS);
    if (full) said.push(`Ended after ${number.format(tokens)} tokens: the model can read no more.`);
    else said.push(tokens ? `Ended at the limit of ${number.format(tokens)} tokens.` : "Ended at the limit of tokens.");
  }
  const cause = CAUSES[timings?.replay_cause];
  if (cause) said.push(`The conversation was read again first (${number.format(timings.prompt_n ?? 0)} tokens): ${cause}.`);
  return said.join(" ");
}

/** What another system prompt, model or way of thinking costs a conversation of so many tokens. */
export function replay(setting, tokens) {
  const read = `the conversation again before it answers: ${number.format(tokens)} tokens.`;
  if (setting === "model") return `Another model reads ${read}`;
  const what = setting === "thinking" ? "Where thinking is told the model at the beginning, it" : "With this the model";
  return `${what} reads ${read}`;
}

/** What an edit makes the model read, where that is worth a word. */
export function cost({ tokens, seconds }) {
  if (seconds ? seconds.high < SLOW : tokens < MANY) return "";
  const read = `This re-reads about ${number.format(Math.round(tokens / 10) * 10)} tokens`;
  return seconds ? `${read}, roughly ${range(seconds)}.` : `${read}.`;
}

/** What stands over the thoughts of an answer. */
export function thoughts({ status, timings }, answering) {
  if (status === "running" && !answering) return "Thinking…";
  const spent = timings?.thinking_ms;
  if (spent == null) return "Thoughts";
  return spent < 500 ? "Thought for a moment" : `Thought for ${number.format(Math.round(spent / 1000))} s`;
}

/** Figures for the curious, in a line. */
export function figures({ usage, timings }) {
  const said = [];
  if (usage?.completion_tokens) said.push(`${number.format(usage.completion_tokens)} tokens`);
  if (timings?.tokens_per_second) said.push(`${timings.tokens_per_second.toFixed(1)} tokens/s`);
  return said.join(" · ") || "Details";
}

/** All of them, as `[name, what]`. */
export function facts({ usage, timings, params, finish_reason }) {
  const { prompt_n, cache_n, ttft_ms, queue_ms } = timings ?? {};
  const written = (value) => (Array.isArray(value) ? value.map((one) => JSON.stringify(one)).join(" ") : value);
  const set = Object.entries(params ?? {}).map(([name, value]) => `${name} ${written(value)}`);
  return [
    ["Read", prompt_n != null && `${number.format(prompt_n)} tokens, ${number.format(cache_n ?? 0)} were in the cache`],
    ["In the queue", queue_ms != null && seconds(queue_ms)],
    ["First token", ttft_ms != null && `after ${seconds(ttft_ms)}`],
    ["Written", usage?.completion_tokens && `${number.format(usage.completion_tokens)} tokens`],
    ["Speed", timings?.tokens_per_second && `${timings.tokens_per_second.toFixed(1)} tokens/s`],
    ["Ended", finish_reason],
    ["Made with", params && (set.join(", ") || "the server's defaults")],
  ].filter(([, what]) => what);
}

function seconds(ms) {
  return `${(ms / 1000).toFixed(1)} s`;
}

/** The sentence of an answer that failed, with what became of its text. */
export function failure({ error, status }) {
  return error?.detail ?? (status === "interrupted" ? "The answer was interrupted." : "The answer failed.");
}
