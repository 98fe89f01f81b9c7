// One attempt of a rollout: its chats, each sampled once, and its outcome.

import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import * as v1 from "./v1.js";
import { canonical, extend, hash, refusal } from "./wire.js";

/** Samples a reply. `signal` aborts when the reply is no longer wanted. A ConnectError answers with its code. */
export type Policy = (chat: Chat, signal: AbortSignal) => Promise<Reply>;

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
}

/** An answered chat: all messages up to the reply, all tokens, and the digest of the messages. */
type Answered = { reply: Reply; messages: v1.Message[]; ids: number[]; history: string };

interface Sampling {
  request: v1.ChatRequest;
  digest: string;
  stop: AbortController;
  reply: Promise<Answered>;
  answered?: Answered;
}

/** A promise that others settle, and whether it is settled. */
export class Deferred<T> {
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  settled = false;
  readonly promise = new Promise<T>((resolve, reject) => Object.assign(this, { resolve, reject }));
  constructor() {
    const settle = () => (this.settled = true);
    this.promise.then(settle, settle); // an error without a waiter is no unhandled rejection
  }
}

export class Rollout {
  readonly accepted = new Deferred<v1.Tool[]>(); // the answer to its Init: its tools
  readonly ended = new AbortController();
  resultId = ""; // of its outcome
  sent = false; // the Init was sent on the present stream
  private readonly chats = new Map<string, Sampling>();

  /** All attempts share the result. */
  constructor(
    readonly request: v1.InitRequest,
    readonly result = new Deferred<v1.RolloutOutcome>(),
  ) {}

  get isOpen(): boolean {
    return !this.ended.signal.aborted;
  }

  /** Ends the attempt, and stops its samplings. */
  end(): void {
    this.ended.abort();
    this.abandon("", 0);
    this.chats.clear();
    this.accepted.resolve([]);
  }

  /** Answers a chat. It is sampled once, however often it is asked, also if the caller leaves. */
  async answer(request: v1.ChatRequest, tools: v1.Tool[], policy: Policy): Promise<v1.ChatResponse> {
    if (!this.isOpen) throw refusal(Code.FailedPrecondition, "ROLLOUT_ENDED", "the rollout has ended");
    const { history: given, sample, chatNumber, forkedPrefix: fork } = request;
    if (request.policy || !given.case || !sample || !chatNumber) {
      throw refusal(Code.InvalidArgument, "INVALID_FIELD", "policy, history, sample or chat_number is wrong");
    }
    const parent = this.answered(sample, given.value.parentChat);
    const before = given.case === "delta" ? parent : { messages: [], history: "" };
    if (!before) {
      const detail = { desc: v1.UnknownChatSchema, value: { sample, chatNumber: given.value.parentChat } };
      throw refusal(Code.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known", detail);
    }
    const messages = [...before.messages, ...given.value.messages];
    const history = extend(before.history, given.value.messages);
    const offered = canonical(v1.ToolsSchema, create(v1.ToolsSchema, { tools }));
    const sampled = canonical(v1.SamplingParamsSchema, request.sampling ?? create(v1.SamplingParamsSchema));
    const digest = hash(history, offered, sampled, String(request.purpose || v1.ChatPurpose.POLICY));
    const name = key(sample, chatNumber);
    let sampling = this.chats.get(name);
    if (!sampling) {
      const inParent = given.case === "full" ? given.value.prefixMessages : before.messages.length;
      const known = parent ? inParent : (fork?.messages ?? 0);
      const chat = { request, messages, tools, parentIds: parent?.ids ?? fork?.tokens?.ids ?? [], known };
      const stop = new AbortController();
      sampling = { request, digest, stop, reply: this.sample(name, chat, history, policy, stop.signal) };
      this.chats.set(name, sampling);
    }
    if (sampling.digest !== digest) throw refusal(Code.AlreadyExists, "CHAT_DIFFERS", "another chat has this number");
    const { message, finishReason, prompt, ids, logprobs } = (await sampling.reply).reply;
    const [tokens, promptTokens] = [ids && { ids, logprobs }, prompt && { ids: prompt }];
    return create(v1.ChatResponseSchema, { message, finishReason, tokens, prompt: promptTokens });
  }

  /** Stops the sampling of the chats that an AbandonChat names. */
  abandon(sample: string, chatNumber: number): void {
    for (const [name, { request, stop, answered }] of this.chats) {
      if (answered || !isNamed(request, sample, chatNumber)) continue;
      this.chats.delete(name);
      stop.abort();
    }
  }

  /** Puts in the tokens and messages that the server left out of an outcome. */
  assemble(outcome: v1.RolloutOutcome): void {
    for (const sample of outcome.samples) {
      sample.messages.unshift(...(this.answered(sample.name, sample.prefixChat)?.messages ?? []));
      for (const segment of sample.segments) {
        const chats = segment.chats.map((number) => this.answered(sample.name, number));
        if (!segment.ids.length && !chats.includes(undefined)) {
          segment.ids = chats.at(-1)?.ids ?? []; // the newest chat has the tokens of all
          segment.logprobs = chats.flatMap((chat) => chat?.reply.logprobs ?? []);
        }
        if (segment.ids.length === segment.maskRuns.reduce((sum, run) => sum + run, 0)) continue;
        sample.trainable = false;
        sample.notTrainableReason = `a segment has ${segment.ids.length} tokens and the mask runs ${segment.maskRuns}`;
      }
    }
  }

  private answered(sample: string, chatNumber: number): Answered | undefined {
    return this.chats.get(key(sample, chatNumber))?.answered;
  }

  private async sample(
    name: string,
    chat: Chat,
    history: string,
    policy: Policy,
    stop: AbortSignal,
  ): Promise<Answered> {
    try {
      const reply = await policy(chat, stop);
      const message = create(v1.MessageSchema, reply.message);
      const ids = [...(reply.prompt ?? []), ...(reply.ids ?? [])];
      const answered = { reply, messages: [...chat.messages, message], ids, history: extend(history, [message]) };
      if (!stop.aborted) this.chats.get(name)!.answered = answered;
      return answered;
    } catch (error) {
      if (stop.aborted) throw new ConnectError("the sampling was stopped", Code.Canceled);
      this.chats.delete(name); // asked again, it is sampled again
      throw ConnectError.from(error, Code.Internal);
    }
  }
}

function key(sample: string, chatNumber: number): string {
  return `${chatNumber} ${sample}`;
}

/** Returns whether an AbandonChat with this sample and number names a chat. */
export function isNamed(chat: v1.ChatRequest, sample: string, chatNumber: number): boolean {
  return [chat.sample, ""].includes(sample) && [chat.chatNumber, 0].includes(chatNumber);
}
