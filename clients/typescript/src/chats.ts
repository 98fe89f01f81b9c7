// The chats of one attempt. Each is sampled once, however often it is asked.

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  ChatPurpose,
  ChatResponseSchema,
  type AbandonChatRequest,
  type ChatRequest,
  type ChatResponse,
} from "../gen/osmosis/rollout/v1/chat_pb.js";
import { UnknownChatSchema } from "../gen/osmosis/rollout/v1/error_pb.js";
import {
  MessageSchema,
  SamplingParamsSchema,
  ToolsSchema,
  type Message,
  type Tool,
  type Usage,
} from "../gen/osmosis/rollout/v1/message_pb.js";
import type { VersionSpan } from "../gen/osmosis/rollout/v1/tokens_pb.js";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { canonical, extend, hash } from "./equality.js";
import { refusal } from "./errors.js";

/** Samples the reply to a chat. `signal` aborts when the reply is no longer wanted. A ConnectError answers with its code. */
export type Policy = (chat: Chat, signal: AbortSignal) => Promise<Reply>;

/** What a policy gets. It does not change it. */
export interface Chat {
  request: ChatRequest;
  /** The whole history. */
  messages: Message[];
  tools: Tool[];
  /** The tokens, prompt and reply, of the chat that this chat continues. The prompt begins with them. */
  parentIds: number[];
  /** The number of messages that `parentIds` covers. The prompt goes on with the tokens of the other messages. */
  known: number;
}

/** What a policy returns. Without `prompt`, `ids` or `logprobs` the sample cannot be trained on. */
export interface Reply {
  message: MessageInitShape<typeof MessageSchema>;
  finishReason?: string;
  /** All ids of the prompt. */
  prompt?: number[];
  /** The sampled ids. */
  ids?: number[];
  logprobs?: number[];
  versions?: VersionSpan[];
  usage?: Usage;
}

/** An answered chat. */
export interface Answered {
  reply: Reply;
  /** All messages, the reply included. */
  messages: Message[];
  /** All tokens, prompt and reply. */
  ids: number[];
  history: string;
}

interface Entry {
  request: ChatRequest;
  digest: string;
  stop: AbortController;
  sampling: Promise<Answered>;
  answered?: Answered;
}

export class ChatCache {
  private readonly entries = new Map<string, Entry>();

  /** Returns an answered chat. */
  get(sample: string, number: number): Answered | undefined {
    return this.entries.get(key(sample, number))?.answered;
  }

  /** Returns the reply to a chat. The sampling goes on if the caller leaves. */
  async answer(request: ChatRequest, tools: Tool[], policy: Policy, ended: AbortSignal): Promise<ChatResponse> {
    const { history: given, sample, chatNumber } = request;
    if (request.policy || !given.case || !sample || !chatNumber) {
      throw refusal(Code.InvalidArgument, "INVALID_FIELD", "policy, history, sample or chat_number is wrong");
    }
    const parent = this.get(sample, given.value.parentChat);
    if (given.case === "delta" && !parent) {
      const detail = { desc: UnknownChatSchema, value: { sample, chatNumber: given.value.parentChat } };
      throw refusal(Code.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known", detail);
    }
    const isDelta = given.case === "delta";
    const fork = request.forkedPrefix;
    const known = isDelta ? parent!.messages.length : parent ? given.value.prefixMessages : (fork?.messages ?? 0);
    const messages = isDelta ? [...parent!.messages, ...given.value.messages] : given.value.messages;
    const history = extend(isDelta ? parent!.history : "", given.value.messages);
    const digest = hash(
      history,
      canonical(ToolsSchema, create(ToolsSchema, { tools })),
      canonical(SamplingParamsSchema, request.sampling ?? create(SamplingParamsSchema)),
      String(request.purpose || ChatPurpose.POLICY),
    );
    let entry = this.entries.get(key(sample, chatNumber));
    if (entry && entry.digest !== digest) {
      throw refusal(Code.AlreadyExists, "CHAT_DIFFERS", `another chat has the number ${chatNumber}`);
    }
    if (!entry) {
      const stop = new AbortController();
      const signal = AbortSignal.any([stop.signal, ended]);
      const chat = { request, messages, tools, parentIds: parent?.ids ?? fork?.tokens?.ids ?? [], known };
      const begun: Entry = { request, digest, stop, sampling: this.sample(chat, history, policy, signal) };
      this.entries.set(key(sample, chatNumber), (entry = begun));
      begun.sampling.then(
        (answered) => (begun.answered = answered),
        () => this.drop(begun), // asked again, it is sampled again
      );
    }
    return response(await entry.sampling, parent);
  }

  /** Stops the sampling of chats. */
  abandon({ sample, chatNumber }: AbandonChatRequest): void {
    for (const entry of [...this.entries.values()]) {
      if (!entry.answered && isNamed(entry.request, sample, chatNumber)) {
        entry.stop.abort();
        this.drop(entry);
      }
    }
  }

  clear(): void {
    this.entries.clear();
  }

  private drop(entry: Entry): void {
    const name = key(entry.request.sample, entry.request.chatNumber);
    if (this.entries.get(name) === entry) this.entries.delete(name);
  }

  private async sample(chat: Chat, history: string, policy: Policy, signal: AbortSignal): Promise<Answered> {
    try {
      const reply = await policy(chat, signal);
      const message = create(MessageSchema, reply.message);
      const ids = [...(reply.prompt ?? []), ...(reply.ids ?? [])];
      return { reply, messages: [...chat.messages, message], ids, history: extend(history, [message]) };
    } catch (error) {
      if (signal.aborted) throw new ConnectError("the sampling was stopped", Code.Canceled);
      throw ConnectError.from(error, Code.Internal);
    }
  }
}

export function isNamed(chat: { sample: string; chatNumber: number }, sample: string, chatNumber: number): boolean {
  return (!sample || sample === chat.sample) && (!chatNumber || chatNumber === chat.chatNumber);
}

/** Returns the reply for the wire, without the ids of the prompt that the server has from the parent. */
function response({ reply, messages }: Answered, parent: Answered | undefined): ChatResponse {
  const { prompt, ids, logprobs, finishReason, usage, versions } = reply;
  let prefix = 0;
  while (prompt && parent && prefix < Math.min(prompt.length, parent.ids.length) && prompt[prefix] === parent.ids[prefix]) {
    prefix++;
  }
  return create(ChatResponseSchema, {
    message: messages.at(-1),
    finishReason,
    usage,
    versions,
    tokens: ids && { ids, logprobs },
    prompt: prompt && { ids: prompt.slice(prefix) },
    promptPrefix: prefix,
  });
}

function key(sample: string, number: number): string {
  return `${number} ${sample}`;
}
