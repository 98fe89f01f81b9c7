// A callback trainer from the generated stubs: one rollout, and two refused calls whose details it decodes.
//
//     node build/trainer.js AGENT_SERVER      prints one JSON object

import * as http2 from "node:http2";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter, createGrpcTransport } from "@connectrpc/connect-node";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/ts/google/rpc/error_details_pb.js";
import { ChatResponseSchema, type ChatRequest } from "./gen/ts/osmosis/rollout/v1/chat_pb.js";
import { OutcomeStatus, Receipt, type RolloutOutcome } from "./gen/ts/osmosis/rollout/v1/outcome_pb.js";
import { RolloutService, TrainerService } from "./gen/ts/osmosis/rollout/v1/services_pb.js";

const chats: ChatRequest[] = [];
let arrived: (outcome: RolloutOutcome) => void;
const ended = new Promise<RolloutOutcome>((resolve) => (arrived = resolve));

function routes(router: ConnectRouter): void {
  router.service(TrainerService, {
    async chat(request) {
      chats.push(request);
      return create(ChatResponseSchema, {
        message: { role: "assistant", content: { case: "text", value: "[from TypeScript]" } },
        finishReason: "stop",
        prompt: { ids: [1, 2, 3] },
        tokens: { ids: [4, 5], logprobs: [-0.5, -0.25] },
        versions: [{ version: "ts-1", tokens: 2 }],
      });
    },
    async complete(request) {
      arrived(request.outcome!);
      return { receipt: Receipt.RECORDED };
    },
    async abandonChat() {
      return {};
    },
  });
}

async function refusal(call: Promise<unknown>) {
  try {
    await call;
  } catch (error) {
    const refused = ConnectError.from(error);
    return {
      code: Code[refused.code],
      reason: refused.findDetails(ErrorInfoSchema)[0]?.reason,
      fields: refused.findDetails(BadRequestSchema)[0]?.fieldViolations.map((each) => each.field),
      retrySeconds: Number(refused.findDetails(RetryInfoSchema)[0]?.retryDelay?.seconds ?? -1n),
    };
  }
  throw new Error("the call was not refused");
}

const listener = http2.createServer(connectNodeAdapter({ routes }));
await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
const address = listener.address();
if (address === null || typeof address === "string") throw new Error("the trainer has no port");

const [target, full] = process.argv.slice(2);
const agents = createClient(RolloutService, createGrpcTransport({ baseUrl: `http://${target}` }));
const callback = { target: `127.0.0.1:${address.port}`, protocol: 1, features: ["abandon_chat"] };
const question = { role: "user", content: { case: "text" as const, value: "What is 6 * 7?" } };
const first = await agents.init({ rolloutId: "typescript-1", spec: { messages: [question] }, callback });
const outcome = await ended;
const segment = outcome.samples[0].segments[0];

const invalid = await refusal(agents.init({ rolloutId: "", spec: { messages: [question] }, callback }));
const busy = createClient(RolloutService, createGrpcTransport({ baseUrl: `http://${full}` }));
const exhausted = full
  ? await refusal(busy.init({ rolloutId: "typescript-2", spec: { messages: [question] }, callback }))
  : null;

console.log(
  JSON.stringify({
    created: first.created,
    tools: first.tools.length,
    chats: chats.map((chat) => [chat.sample, chat.chatNumber]),
    status: OutcomeStatus[outcome.status],
    ids: Array.from(segment.ids),
    logprobs: Array.from(segment.logprobs),
    maskRuns: Array.from(segment.maskRuns),
    invalid,
    exhausted,
  }),
);
process.exit(0);
