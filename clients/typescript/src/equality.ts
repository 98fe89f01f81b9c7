// Equality of chats: JSON text within messages, tools and parameters is compared as JSON values.

import { createHash } from "node:crypto";
import { toJson, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import * as v1 from "./v1.js";

const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g; // strings and numbers of a JSON text

/** Returns a text that is the same for equal messages. */
export function canonical<T extends DescMessage>(schema: T, message: MessageShape<T>): string {
  return JSON.stringify(toJson(schema, message), (key, value) => {
    if (key !== "extraJson" && key !== "parametersJson") return sorted(value);
    const text = canonicalJson(value);
    return key === "extraJson" && text === "{}" ? undefined : text; // an extra_json of {} means none
  });
}

/** Returns the digest of a history with further messages. */
export function extend(history: string, messages: v1.Message[]): string {
  return messages.reduce((digest, message) => hash(digest, canonical(v1.MessageSchema, message)), history);
}

export function hash(...texts: string[]): string {
  return createHash("sha256").update(texts.join("\0")).digest("base64");
}

/** Numbers become exact: "n12" is a number, and "s12" is a string. */
function canonicalJson(text: string): string {
  const exact = text.replace(TOKENS, (token) => (token[0] === '"' ? `"s${token.slice(1)}` : `"n${number(token)}"`));
  try {
    return JSON.stringify(JSON.parse(exact), (_, value) => sorted(value));
  } catch {
    return text;
  }
}

function number(token: string): bigint | number {
  const value = Number(token);
  if (/^-?\d+$/.test(token)) return BigInt(token);
  return Number.isInteger(value) ? BigInt(value) : value;
}

function sorted(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
}
