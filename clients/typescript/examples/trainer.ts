// The trainer under test of docs/conformance.md. With --script it runs the rollouts of clients/calculator.json on the
// example agent examples/calculator instead.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import type { Message } from "../gen/osmosis/rollout/v1/message_pb.js";
import { OutcomeStatus, type RolloutOutcome } from "../gen/osmosis/rollout/v1/outcome_pb.js";
import { HistoryForm, type RolloutSpecSchema } from "../gen/osmosis/rollout/v1/rollout_pb.js";
import { Trainer, type Chat, type Reply } from "../src/index.js";

interface Scripted {
  question: string;
  label: string;
  replies: { content: string; seconds?: number; tool_calls?: { name: string; arguments: string }[] }[];
}

const options = {
  mode: { type: "string", default: "attach" },
  target: { type: "string", default: "" },
  listen: { type: "string", default: "127.0.0.1:0" },
  advertise: { type: "string" },
  rollouts: { type: "string", default: "1" },
  prefix: { type: "string", default: "typescript" },
  history: { type: "string" },
  poll: { type: "string" },
  script: { type: "string" },
} as const;
const { values } = parseArgs({ options });
if (values.mode !== "callback" && values.mode !== "attach") process.exit(3); // it lacks Accept
const scripts: Record<string, Scripted> = values.script ? JSON.parse(readFileSync(values.script, "utf8")) : {};

function print(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function text(message: Message | undefined): string {
  return message?.content.case === "text" ? message.content.value : "";
}

async function policy({ request, messages, parentIds, known }: Chat, signal: AbortSignal): Promise<Reply> {
  const { rolloutId: rollout_id, attempt, sample, chatNumber: chat_number } = request;
  print({ event: "sampled", rollout_id, attempt, sample, chat_number });
  const newest = text(messages.at(-1));
  const step = scripts[rollout_id]?.replies[chat_number - 1];
  const seconds = step ? (step.seconds ?? 0.2) : Number(/^wait ([\d.]+)/.exec(newest)?.[1] ?? 0);
  try {
    await sleep(seconds * 1000, undefined, { signal });
  } catch (error) {
    print({ event: "stopped", rollout_id, attempt, sample, chat_number });
    throw error;
  }
  const version = /^version (\S+)/.exec(newest)?.[1];
  const value = step ? step.content : `echo: ${newest}`;
  const toolCalls = (step?.tool_calls ?? []).map((call, n) => ({
    id: `call_${chat_number}_${n}`,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return {
    message: { role: "assistant", content: { case: "text", value }, toolCalls },
    finishReason: toolCalls.length ? "tool_calls" : "stop",
    prompt: [...parentIds, ...messages.slice(known).map((message) => 1000 + Buffer.byteLength(text(message)))],
    ids: [chat_number, 2000 + Buffer.byteLength(value)],
    logprobs: [-0.5, -0.25],
    versions: version ? [{ version, tokens: 2 }] : [],
  };
}

function onOutcome({ rolloutId, attempt, resultId, status, reward, samples }: RolloutOutcome): void {
  const shown = samples.map(({ name, trainable, segments }) => ({
    name,
    trainable,
    segments: segments.map(({ ids, maskRuns, logprobs, chats }) => ({ ids, mask_runs: maskRuns, logprobs, chats })),
  }));
  const result = { result_id: resultId, status: OutcomeStatus[status], reward: reward ?? null, samples: shown };
  print({ event: "outcome", rollout_id: rolloutId, attempt, ...result });
}

function refused(rollout_id: string, problem: unknown): void {
  const error = ConnectError.from(problem);
  if (error.code === Code.Aborted) process.exit(1); // another trainer has the attachment
  const status = (Code[error.code] ?? "").replace(/\B[A-Z]/g, "_$&").toUpperCase().replace("CANCELED", "CANCELLED");
  print({ event: "refused", rollout_id, status, reason: error.findDetails(ErrorInfoSchema)[0]?.reason ?? "" });
}

function specs(): [string, MessageInitShape<typeof RolloutSpecSchema>][] {
  const user = (value: string) => [{ role: "user", content: { case: "text" as const, value } }];
  if (values.script) {
    return Object.entries(scripts).map(([id, { question, label }]) => [
      id,
      { agentLoop: "calculator", messages: user(question), label },
    ]);
  }
  return Array.from({ length: Number(values.rollouts) }, (_, n) => [
    `${values.prefix}-${n + 1}`,
    { agentLoop: "conformance", messages: user("start") },
  ]);
}

const trainer = await Trainer.connect({
  target: values.target,
  policy,
  onOutcome,
  history: { full: HistoryForm.FULL, delta: HistoryForm.DELTA }[values.history ?? ""],
  ...(values.poll && { pollInterval: 1000 * Number(values.poll) }),
  ...(values.mode === "callback" && { listen: values.listen, advertise: values.advertise }),
});
const all = specs().map(([rolloutId, spec]) => trainer.rollout({ rolloutId, spec }).catch((error) => refused(rolloutId, error)));
for await (const _ of process.stdin);
await Promise.all(all);
await trainer.close();
process.exit(0);
