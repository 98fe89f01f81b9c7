// One attempt of a rollout: its chats, each sampled once, and its outcome.

import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { canonical, extend, hash } from "./equality.js";
import { refusal } from "./errors.js";
import * as v1 from "./v1.js";

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

/** What a policy returns. Without `prompt`, `ids` or `logprobs` the sample cannot be trained on. */
export interface Reply {
  message: MessageInitShape<typeof v1.MessageSchema>;
  finishReason?: string;
  /** All ids of the prompt. */
  prompt?: number[];
  /** The sampled ids. */
  ids?: number[];
  logprobs?: number[];
}

/** A stretch of a conversation: all tokens, the loss mask as runs (zeros first), logprobs of tokens with mask 1. */
export type Segment = Pick<v1.Segment, "ids" | "maskRuns" | "logprobs" | "chats">;

/** One conversation. Train on its segments if `trainable`, and unless `train` is false. */
export type Sample = Omit<v1.Sample, "segments"> & { segments: Segment[] };

/** An outcome. What the server left out comes from the chats that this trainer answered. */
export type Outcome = Omit<v1.RolloutOutcome, "samples"> & { samples: Sample[] };

/** An answered chat: its reply, all messages up to the reply, all tokens, and the digest of the messages. */
interface Answered {
  reply: Reply;
  messages: v1.Message[];
  ids: number[];
  history: string;
}

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
  readonly promise = new Promise<T>((resolve, reject) => {
    this.resolve = (value) => ((this.settled = true), resolve(value));
    this.reject = (error) => ((this.settled = true), reject(error));
  });
  constructor() {
    this.promise.catch(() => {}); // an error without a waiter is no unhandled rejection
  }
}

export class Rollout {
  /** Settled with the tools of the rollout when its Init is answered. */
  readonly accepted = new Deferred<v1.Tool[]>();
  /** Aborts when the attempt has ended. */
  readonly ended = new AbortController();
  resultId = ""; // of its outcome
  sent = false; // the Init was sent on the present stream
  private readonly chats = new Map<string, Sampling>();

  /** All attempts share the result and the credential of callbacks. */
  constructor(
    readonly request: v1.InitRequest,
    readonly result = new Deferred<Outcome>(),
    readonly credential: string = randomUUID(),
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
    const digest = hash(
      history,
      canonical(v1.ToolsSchema, create(v1.ToolsSchema, { tools })),
      canonical(v1.SamplingParamsSchema, request.sampling ?? create(v1.SamplingParamsSchema)),
      String(request.purpose || v1.ChatPurpose.POLICY),
    );
    let sampling = this.chats.get(key(sample, chatNumber));
    if (sampling && sampling.digest !== digest) {
      throw refusal(Code.AlreadyExists, "CHAT_DIFFERS", `another chat has the number ${chatNumber}`);
    }
    if (!sampling) {
      const inParent = given.case === "full" ? given.value.prefixMessages : before.messages.length;
      const known = parent ? inParent : (fork?.messages ?? 0);
      const chat = { request, messages, tools, parentIds: parent?.ids ?? fork?.tokens?.ids ?? [], known };
      const stop = new AbortController();
      const begun: Sampling = { request, digest, stop, reply: beginSampling(chat, history, policy, stop.signal) };
      this.chats.set(key(sample, chatNumber), (sampling = begun));
      begun.reply.then(
        (answered) => (begun.answered = answered),
        () => this.drop(begun), // asked again, it is sampled again
      );
    }
    return toResponse(await sampling.reply, parent);
  }

  /** Stops the sampling of chats whose replies are no longer wanted. */
  abandon(sample: string, chatNumber: number): void {
    for (const sampling of [...this.chats.values()]) {
      if (sampling.answered || !isNamed(sampling.request, sample, chatNumber)) continue;
      sampling.stop.abort();
      this.drop(sampling);
    }
  }

  /** Returns an outcome with the tokens and messages that the server left out. */
  assemble(reported: v1.RolloutOutcome): Outcome {
    const samples = reported.samples.map((sample) => {
      const messages = [...(this.answered(sample.name, sample.prefixChat)?.messages ?? []), ...sample.messages];
      try {
        return { ...sample, messages, segments: sample.segments.map((segment) => this.fill(segment, sample.name)) };
      } catch (error) {
        return { ...sample, messages, segments: [], trainable: false, notTrainableReason: (error as Error).message };
      }
    });
    return { ...reported, samples };
  }

  private fill({ ids, maskRuns, logprobs, chats: numbers }: v1.Segment, sample: string): Segment {
    const length = maskRuns.reduce((sum, run) => sum + run, 0);
    if (!ids.length && length) {
      const chats = numbers.map((number) => this.answered(sample, number));
      if (chats.includes(undefined)) throw new Error(`a segment names chats that were not answered here: ${numbers}`);
      ids = chats.at(-1)?.ids ?? []; // the newest chat has the tokens of all
      logprobs = chats.flatMap((chat) => chat?.reply.logprobs ?? []);
    }
    if (ids.length !== length) throw new Error(`a segment has ${ids.length} tokens and a mask for ${length}`);
    return { ids, maskRuns, logprobs, chats: numbers };
  }

  private answered(sample: string, number: number): Answered | undefined {
    return this.chats.get(key(sample, number))?.answered;
  }

  private drop(sampling: Sampling): void {
    const name = key(sampling.request.sample, sampling.request.chatNumber);
    if (this.chats.get(name) === sampling) this.chats.delete(name);
  }
}

/** Returns whether an AbandonChat names a chat. */
export function isNamed(chat: v1.ChatRequest, sample: string, chatNumber: number): boolean {
  return (!sample || sample === chat.sample) && (!chatNumber || chatNumber === chat.chatNumber);
}

async function beginSampling(chat: Chat, history: string, policy: Policy, signal: AbortSignal): Promise<Answered> {
  try {
    const reply = await policy(chat, signal);
    const message = create(v1.MessageSchema, reply.message);
    const ids = [...(reply.prompt ?? []), ...(reply.ids ?? [])];
    return { reply, messages: [...chat.messages, message], ids, history: extend(history, [message]) };
  } catch (error) {
    if (signal.aborted) throw new ConnectError("the sampling was stopped", Code.Canceled);
    throw ConnectError.from(error, Code.Internal);
  }
}

/** Returns the reply for the wire, without the ids of the prompt that the server has from the parent. */
function toResponse({ reply, messages }: Answered, parent: Answered | undefined): v1.ChatResponse {
  const { prompt, ids, logprobs, finishReason } = reply;
  const parentIds = parent?.ids ?? [];
  const differs = prompt?.findIndex((id, index) => id !== parentIds[index]) ?? 0;
  const promptPrefix = differs < 0 ? prompt!.length : differs;
  return create(v1.ChatResponseSchema, {
    message: messages.at(-1),
    finishReason,
    tokens: ids && { ids, logprobs },
    prompt: prompt && { ids: prompt.slice(promptPrefix) },
    promptPrefix,
  });
}

function key(sample: string, chatNumber: number): string {
  return `${chatNumber} ${sample}`;
}
