// Statuses as errors and as values, and the statuses with which a trainer refuses a request.

import { create } from "@bufbuild/protobuf";
import { anyPack, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import * as v1 from "./v1.js";

type Detail = Exclude<ConnectError["details"][number], { type: string }>;
const BUSY = [Code.Unavailable, Code.ResourceExhausted, Code.DeadlineExceeded];

/** Returns an error with an ErrorInfo and further details. */
export function refusal(code: Code, reason: string, message: string, ...details: Detail[]): ConnectError {
  const info = { desc: v1.ErrorInfoSchema, value: { domain: "osmosis.rollout", reason } };
  return new ConnectError(message, code, undefined, [info, ...details]);
}

/** Refuses a request for an attempt below the newest. */
export function superseded(rolloutId: string, newest: number): ConnectError {
  const detail = { desc: v1.CurrentAttemptSchema, value: { rolloutId, attempt: newest } };
  return refusal(Code.Aborted, "ATTEMPT_SUPERSEDED", `rollout ${rolloutId} is at attempt ${newest}`, detail);
}

/** Refuses a chat that continues a chat without an answer. */
export function unknownParent(sample: string, chatNumber: number): ConnectError {
  const detail = { desc: v1.UnknownChatSchema, value: { sample, chatNumber } };
  return refusal(Code.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known", detail);
}

/** Returns an error as a value. An error of the policy without a code is INTERNAL. */
export function toStatus(error: unknown): v1.Status {
  const { code, rawMessage, details } = ConnectError.from(error, Code.Internal);
  const packed = details.map((each) =>
    "desc" in each
      ? anyPack(each.desc, create(each.desc, each.value))
      : { typeUrl: `type.googleapis.com/${each.type}`, value: each.value },
  );
  return create(v1.StatusSchema, { code, message: rawMessage, details: packed });
}

export function fromStatus({ code, message, details }: v1.Status): ConnectError {
  const error = new ConnectError(message, code);
  error.details = details.map(({ typeUrl, value }) => ({ type: typeUrl.split("/").at(-1)!, value }));
  return error;
}

/** Returns whether the peer has answered with this error. Otherwise the connection failed, and nothing is known. */
export function isAnswer(error: ConnectError): boolean {
  return error.metadata.has("grpc-status") || error.metadata.has("grpc-status-details-bin");
}

/** Returns the pause before a refused request may be sent again, in milliseconds; undefined if it may not. */
export function retryAfter(error: ConnectError): number | undefined {
  const delay = error.findDetails(v1.RetryInfoSchema)[0]?.retryDelay;
  if (delay) return durationMs(delay);
  return BUSY.includes(error.code) ? 1000 : undefined;
}
