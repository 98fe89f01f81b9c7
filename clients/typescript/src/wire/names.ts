// Names of chats, and addresses.

import * as v1 from "./v1.js";

/** Returns a text that names a chat of an attempt. */
export function nameOf(
  { rolloutId, attempt }: v1.InitRequest | v1.ChatRequest,
  sample: string,
  chatNumber: number,
): string {
  return JSON.stringify([rolloutId, attempt || 1, sample, chatNumber]);
}

/** Returns whether an AbandonChat names a chat. Without a sample it names all, without a number all of the sample. */
export function isNamed(
  chat: v1.ChatRequest,
  { rolloutId, attempt, sample, chatNumber }: v1.AbandonChatRequest,
): boolean {
  const isOfAttempt = chat.rolloutId === rolloutId && (chat.attempt || 1) === (attempt || 1);
  return isOfAttempt && [chat.sample, ""].includes(sample) && [chat.chatNumber, 0].includes(chatNumber);
}

/** Returns the parts of HOST:PORT. The host may be empty. */
export function hostAndPort(address: string): { host: string; port: number } {
  const [, host, port] = /^(.*):(\d+)$/.exec(address) ?? [];
  if (host === undefined) throw new Error(`${address} is not HOST:PORT`);
  return { host, port: Number(port) };
}
