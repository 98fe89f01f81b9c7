// What a trainer says about itself, and its answers as frames.

import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { toStatus } from "./status.js";
import * as v1 from "./v1.js";

export type Frame = NonNullable<MessageInitShape<typeof v1.TrainerFrameSchema>["frame"]>;

const FEATURES = ["abandon_chat", "goodbye"];

/** Returns the first frame of a stream. All streams of a trainer have the same ids. */
export function newHello(maxOpenChats: number, history: v1.HistoryForm | undefined): v1.TrainerHello {
  return create(v1.TrainerHelloSchema, {
    attachmentId: randomUUID(),
    processId: randomUUID(),
    version: "osmosis-typescript 1",
    protocolMin: 1,
    protocolMax: 1,
    maxOpenChats,
    history,
    features: FEATURES,
  });
}

/** Returns how a server calls the trainer back, without the credential. `served` are the features of the server. */
export function newCallback(target: string, history: v1.HistoryForm | undefined, served: string[]): v1.Callback {
  return create(v1.CallbackSchema, {
    target,
    history,
    runId: randomUUID(),
    protocol: 1,
    features: FEATURES,
    outcomeByReference: served.includes("outcome_by_reference"),
  });
}

/** Returns the answer to a chat: a response, or an error as a status. */
export async function chatReply(request: v1.ChatRequest, response: Promise<v1.ChatResponse>): Promise<Frame> {
  const { rolloutId, attempt, sample, chatNumber } = request;
  const result = await response.then(
    (value) => ({ case: "response" as const, value }),
    (error: unknown) => ({ case: "status" as const, value: toStatus(error) }),
  );
  return { case: "chatReply", value: { rolloutId, attempt, sample, chatNumber, result } };
}

/** Returns the answer to an outcome: its receipt, or the error of `record` as a status. */
export function completeReply(outcome: v1.RolloutOutcome | undefined, record: () => v1.Receipt): Frame {
  const { rolloutId, attempt, resultId } = outcome ?? {};
  try {
    const result = { case: "receipt" as const, value: record() };
    return { case: "completeReply", value: { rolloutId, attempt, resultId, result } };
  } catch (error) {
    const result = { case: "status" as const, value: toStatus(error) };
    return { case: "completeReply", value: { rolloutId, attempt, resultId, result } };
  }
}
