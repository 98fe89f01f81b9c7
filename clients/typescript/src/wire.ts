// Statuses as errors and as values, and the equality of chats.

import { createHash } from "node:crypto";
import { create, toJson, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { anyPack, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import * as v1 from "./v1.js";

type Detail = Exclude<ConnectError["details"][number], { type: string }>;
const BUSY = [Code.Unavailable, Code.ResourceExhausted, Code.DeadlineExceeded];
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g; // strings and numbers of a JSON text

/** Returns an error with an ErrorInfo and further details. */
export function refusal(code: Code, reason: string, message: string, ...details: Detail[]): ConnectError {
  const info = { desc: v1.ErrorInfoSchema, value: { domain: "osmosis.rollout", reason } };
  return new ConnectError(message, code, undefined, [info, ...details]);
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

/** Returns the digest of a history with further messages. */
export function extend(history: string, messages: v1.Message[]): string {
  return messages.reduce((digest, message) => hash(digest, canonical(v1.MessageSchema, message)), history);
}

export function hash(...texts: string[]): string {
  return createHash("sha256").update(texts.join("\0")).digest("base64");
}

/** Returns a text that is the same for equal messages. JSON text within them is compared by value. */
export function canonical<T extends DescMessage>(schema: T, message: MessageShape<T>): string {
  return JSON.stringify(toJson(schema, message), (key, value) => {
    if (key !== "extraJson" && key !== "parametersJson") return sorted(value);
    const text = canonicalJson(value);
    return key === "extraJson" && text === "{}" ? undefined : text; // an extra_json of {} means none
  });
}

/** Numbers become exact: "n12" is a number, and "s12" is a string. */
function canonicalJson(text: string): string {
  const exact = text.replace(TOKENS, (token) => {
    if (token.startsWith('"')) return `"s${token.slice(1)}`;
    const isWhole = /^-?\d+$/.test(token) || Number.isInteger(Number(token));
    return `"n${isWhole ? BigInt(/^-?\d+$/.test(token) ? token : Number(token)) : Number(token)}"`;
  });
  try {
    return JSON.stringify(JSON.parse(exact), (_, value) => sorted(value));
  } catch {
    return text;
  }
}

function sorted(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
}
