// Chats: what a policy gets and returns, how a chat continues another one, and what outcomes refer to.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { digestOf, extend } from "./equality.js";
import { refusal, unknownParent } from "./status.js";
import * as v1 from "./v1.js";

/** What a policy gets. It does not change it. */
export interface Chat {
  request: v1.ChatRequest;
  /** The whole history. */
  messages: v1.Message[];
  tools: v1.Tool[];
  /** The tokens, prompt and reply, of the chat that this chat continues. The prompt begins with them. */
  parentIds: number[];
  /** The number of messages that `parentIds` covers. The prompt goes on with the tokens of the other messages. */
  known: number;
}

/** What a policy returns. Without `prompt` (all its ids), `ids` or `logprobs` the sample cannot be trained on. */
export interface Reply {
  message: MessageInitShape<typeof v1.MessageSchema>;
  finishReason?: string;
  prompt?: number[];
  ids?: number[];
  logprobs?: number[];
  /** The versions of the policy that sampled the ids. */
  versions?: MessageInitShape<typeof v1.VersionSpanSchema>[];
}

/** A chat as a rollout keeps it. Its digests are the same for equal chats. */
export interface Asked extends Chat {
  /** The digest of its messages. */
  history: string;
  /** The digest of all that it asks for. */
  digest: string;
  /** Undefined before it has been sampled. */
  response?: v1.ChatResponse;
}

/** Returns an answered chat of a sample by its number. */
export type Lookup = (chatNumber: number) => Asked | undefined;

type Conversation = Pick<Asked, "messages" | "history" | "response">;
const NOTHING: Conversation = { messages: [], history: "" };

/** Returns the chat that a request asks for, or throws the status that refuses it. */
export function askedBy(request: v1.ChatRequest, tools: v1.Tool[], answered: Lookup): Asked {
  const { history: given, sample, chatNumber, forkedPrefix: fork } = request;
  if (request.policy || !given.case || !sample || !chatNumber) {
    throw refusal(Code.InvalidArgument, "INVALID_FIELD", "policy, history, sample or chat_number is wrong");
  }
  const parent = answered(given.value.parentChat);
  const before = given.case === "delta" ? parent : NOTHING;
  if (!before) throw unknownParent(sample, given.value.parentChat);
  const added = [...replyOf(before), ...given.value.messages];
  const messages = [...before.messages, ...added];
  const history = extend(before.history, added);
  const digest = digestOf(request, history, tools);
  const inParent = given.case === "full" ? given.value.prefixMessages : messages.length - given.value.messages.length;
  const known = parent ? inParent : (fork?.messages ?? 0);
  const parentIds = parent ? idsOf(parent) : (fork?.tokens?.ids ?? []);
  return { request, messages, tools, parentIds, known, history, digest };
}

export function toResponse({ message, finishReason, prompt, ids, logprobs, versions }: Reply): v1.ChatResponse {
  const [tokens, promptTokens] = [ids && { ids, logprobs }, prompt && { ids: prompt }];
  return create(v1.ChatResponseSchema, { message, finishReason, tokens, prompt: promptTokens, versions });
}

/** Puts in the tokens and messages that the server left out of a sample, and checks the masks. */
export function fillIn(sample: v1.Sample, answered: Lookup): void {
  const prefix = answered(sample.prefixChat);
  if (prefix) {
    sample.messages = [...prefix.messages, ...replyOf(prefix), ...sample.messages];
    sample.prefixChat = 0;
  }
  for (const segment of sample.segments) {
    const chats = segment.chats.map((chatNumber) => answered(chatNumber));
    if (!segment.ids.length && !chats.includes(undefined)) {
      segment.ids = idsOf(chats.at(-1)); // the newest chat has the tokens of all
      segment.logprobs = chats.flatMap((chat) => chat?.response?.tokens?.logprobs ?? []);
    }
    if (segment.ids.length === segment.maskRuns.reduce((sum, run) => sum + run, 0)) continue;
    sample.trainable = false;
    sample.notTrainableReason = `a segment has ${segment.ids.length} tokens and the mask runs ${segment.maskRuns}`;
  }
}

function replyOf({ response }: Conversation): v1.Message[] {
  return response?.message ? [response.message] : [];
}

/** Returns the tokens of the prompt and the reply. */
function idsOf(chat: Asked | undefined): number[] {
  return [...(chat?.response?.prompt?.ids ?? []), ...(chat?.response?.tokens?.ids ?? [])];
}
