// The equality of chats: by value, also of the JSON text within them.

import { createHash } from "node:crypto";
import { create, toJson, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import * as v1 from "./v1.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g; // strings and numbers of a JSON text

/** Returns the digest of a history with further messages. */
export function extend(history: string, messages: v1.Message[]): string {
  return messages.reduce((digest, message) => hash(digest, canonical(v1.MessageSchema, message)), history);
}

/** Returns the digest of all that a chat asks for. `history` is the digest of its messages. */
export function digestOf({ sampling, purpose }: v1.ChatRequest, history: string, tools: v1.Tool[]): string {
  const offered = canonical(v1.ToolsSchema, create(v1.ToolsSchema, { tools }));
  const sampled = canonical(v1.SamplingParamsSchema, sampling ?? create(v1.SamplingParamsSchema));
  return hash(history, offered, sampled, String(purpose || v1.ChatPurpose.POLICY));
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
