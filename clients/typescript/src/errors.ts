// Statuses: refused calls, and the same as values in frames.

import { create } from "@bufbuild/protobuf";
import { anyPack } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorInfoSchema, RetryInfoSchema } from "../gen/google/rpc/error_details_pb.js";
import { StatusSchema, type Status } from "../gen/osmosis/rollout/v1/error_pb.js";

type Detail = Exclude<ConnectError["details"][number], { type: string }>;

/** Returns an error with an ErrorInfo and another detail. */
export function refusal(code: Code, reason: string, message: string, detail?: Detail): ConnectError {
  const info = { desc: ErrorInfoSchema, value: { domain: "osmosis.rollout", reason } };
  return new ConnectError(message, code, undefined, detail ? [info, detail] : [info]);
}

/** Returns an error as a value. An error of the policy without a code is INTERNAL. */
export function toStatus(error: unknown): Status {
  const { code, rawMessage, details } = ConnectError.from(error, Code.Internal);
  const packed = details.map((each) =>
    "desc" in each
      ? anyPack(each.desc, create(each.desc, each.value))
      : { typeUrl: `type.googleapis.com/${each.type}`, value: each.value },
  );
  return create(StatusSchema, { code, message: rawMessage, details: packed });
}

export function fromStatus(status: Status): ConnectError {
  const error = new ConnectError(status.message, status.code);
  error.details = status.details.map(({ typeUrl, value }) => ({ type: typeUrl.split("/").at(-1)!, value }));
  return error;
}

/** Returns whether the peer has answered with this error. Otherwise the connection failed, and nothing is known. */
export function isAnswer(error: ConnectError): boolean {
  return error.metadata.has("grpc-status") || error.metadata.has("grpc-status-details-bin");
}

/** Returns the pause before a refused Init may be sent again, in milliseconds; undefined if it may not. */
export function retryAfter(error: ConnectError): number | undefined {
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  if (delay) return Number(delay.seconds) * 1000 + delay.nanos / 1e6;
  return [Code.Unavailable, Code.ResourceExhausted, Code.DeadlineExceeded].includes(error.code) ? 1000 : undefined;
}

export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = (): void => (clearTimeout(timer), signal.removeEventListener("abort", done), resolve());
    const timer = setTimeout(done, signal.aborted ? 0 : milliseconds);
    signal.addEventListener("abort", done);
  });
}
