// Runs one rollout of the example agent examples/calculator, and prints what to train on.
//
//     node build/examples/calculator.js 127.0.0.1:50051

import { Trainer, type Chat, type Reply } from "../src/index.js";
import { OutcomeStatus } from "../gen/osmosis/rollout/v1/outcome_pb.js";

/** Calls a tool once, and answers with its result. A real policy samples from a model, token-in, token-out. */
async function policy({ messages, parentIds, known }: Chat): Promise<Reply> {
  const texts = messages.map(({ content }) => (content.case === "text" ? content.value : ""));
  const tokens = [...Buffer.from(texts.slice(known).join(""))]; // your tokenizer
  const call = { id: "call_1", function: { name: "multiply", arguments: '{"a": 6, "b": 7}' } };
  const message =
    messages.at(-1)?.role === "tool"
      ? { role: "assistant", content: { case: "text" as const, value: `#### ${texts.at(-1)}` } }
      : { role: "assistant", content: { case: "text" as const, value: "" }, toolCalls: [call] };
  return { message, finishReason: "stop", prompt: [...parentIds, ...tokens], ids: [300, 301], logprobs: [-0.1, -0.2] };
}

const trainer = await Trainer.connect({ target: process.argv[2] ?? "127.0.0.1:50051", policy });
const question = { role: "user", content: { case: "text" as const, value: "What is 6 * 7?" } };
const outcome = await trainer.rollout({ spec: { messages: [question], label: "42" } }, AbortSignal.timeout(60_000));
await trainer.close();

console.log(OutcomeStatus[outcome.status], "reward", outcome.reward);
for (const { ids, maskRuns, logprobs } of outcome.samples.flatMap((sample) => sample.segments)) {
  console.log(ids.length, "tokens, mask runs", maskRuns, "and", logprobs.length, "logprobs"); // train on these
}
