// A callback trainer from the generated stubs: one rollout, and two refused calls whose details it decodes.
//
//     node build/trainer.js AGENT_SERVER DRAINING_SERVER      prints one JSON object

import * as http2 from "node:http2";
import { create } from "@bufbuild/protobuf";
import { ConnectError, createClient, type ConnectRouter } from "@connectrpc/connect";
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
    const retry = refused.findDetails(RetryInfoSchema)[0]?.retryDelay;
    return {
      reason: refused.findDetails(ErrorInfoSchema)[0]?.reason,
      fields: refused.findDetails(BadRequestSchema)[0]?.fieldViolations.map((each) => each.field) ?? [],
      retry_seconds: retry ? Number(retry.seconds) : null,
    };
  }
  throw new Error("the call was not refused");
}

const listener = http2.createServer(connectNodeAdapter({ routes }));
await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
const address = listener.address();
if (address === null || typeof address === "string") throw new Error("the trainer has no port");

const [target, draining] = process.argv.slice(2);
const agents = createClient(RolloutService, createGrpcTransport({ baseUrl: `http://${target}` }));
const refusing = createClient(RolloutService, createGrpcTransport({ baseUrl: `http://${draining}` }));
const callback = { target: `127.0.0.1:${address.port}`, protocol: 1, features: ["abandon_chat"] };
const question = { role: "user", content: { case: "text" as const, value: "What is 6 * 7?" } };
const init = (rolloutId: string) => ({ rolloutId, spec: { messages: [question] }, callback });

const answer = await agents.init(init("typescript-1"));
const outcome = await ended;
const segment = outcome.samples[0].segments[0];

console.log(
  JSON.stringify({
    created: answer.created,
    tools: answer.tools.length,
    chats: chats.map((chat) => [chat.sample, chat.chatNumber]),
    status: OutcomeStatus[outcome.status],
    ids: segment.ids,
    logprobs: segment.logprobs,
    mask_runs: segment.maskRuns,
    invalid: await refusal(agents.init(init(""))),
    draining: await refusal(refusing.init(init("typescript-2"))),
  }),
);
process.exit(0);
