// Equality of messages, tools and parameters: JSON text within them is compared as JSON values.

import { createHash } from "node:crypto";
import { toJson, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { MessageSchema, type Message } from "../gen/osmosis/rollout/v1/message_pb.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;

/** Returns a text that is the same for equal messages. */
export function canonical<T extends DescMessage>(schema: T, message: MessageShape<T>): string {
  return JSON.stringify(sorted(toJson(schema, message), true));
}

/** Returns the digest of a history with further messages. */
export function extend(history: string, messages: Message[]): string {
  return messages.reduce((digest, message) => hash(digest, canonical(MessageSchema, message)), history);
}

export function hash(...texts: string[]): string {
  return createHash("sha256").update(texts.join("\0")).digest("base64");
}

function sorted(value: unknown, isMessage: boolean): unknown {
  if (Array.isArray(value)) return value.map((item) => sorted(item, isMessage));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).map(([key, item]) => {
    const isText = isMessage && (key === "extraJson" || key === "parametersJson");
    return [key, isText ? parse(item as string) : sorted(item, isMessage)] as const;
  });
  const some = entries.filter(([key, item]) => !(isMessage && key === "extraJson" && JSON.stringify(item) === "{}"));
  return Object.fromEntries(some.sort(([a], [b]) => (a < b ? -1 : 1))); // an extra_json of {} means none
}

/** Returns the value of a JSON text with exact numbers: "n12" is a number, and "s12" is a string. */
function parse(text: string): unknown {
  try {
    return sorted(JSON.parse(text.replace(TOKENS, (token) => (token[0] === '"' ? `"s${token.slice(1)}` : number(token)))), false);
  } catch {
    return text;
  }
}

function number(token: string): string {
  const whole = /^-?\d+$/.test(token) ? BigInt(token) : Number(token);
  return `"n${typeof whole === "number" && Number.isInteger(whole) ? BigInt(whole) : whole}"`;
}
