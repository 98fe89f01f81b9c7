// One attempt of a rollout: its chats, each sampled once, and its outcome.

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { askedBy, fillIn, toResponse, type Asked, type Chat, type Reply } from "./wire/chats.js";
import { Deferred } from "./wire/deferred.js";
import { isNamed, nameOf } from "./wire/names.js";
import { refusal } from "./wire/status.js";
import * as v1 from "./wire/v1.js";

/** Samples a reply. `signal` aborts when the reply is no longer wanted. A ConnectError answers with its code. */
export type Policy = (chat: Chat, signal: AbortSignal) => Promise<Reply>;

interface Sampling {
  chat: Asked;
  stop: AbortController;
  response: Promise<v1.ChatResponse>;
}

export class Rollout {
  readonly accepted = new Deferred<v1.Tool[]>(); // the answer to its Init: its tools
  readonly ended = new AbortController();
  resultId = ""; // of its outcome
  sent = false; // the Init was sent on the present stream
  private readonly samplings = new Map<string, Sampling>(); // by the name of the chat

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
    const { rolloutId, attempt } = this.request;
    this.ended.abort();
    this.abandon(create(v1.AbandonChatRequestSchema, { rolloutId, attempt }));
    this.samplings.clear();
    this.accepted.resolve([]);
  }

  /** Answers a chat. It is sampled once, however often it is asked, also if the caller leaves. */
  async answer(request: v1.ChatRequest, tools: v1.Tool[], policy: Policy): Promise<v1.ChatResponse> {
    if (!this.isOpen) throw refusal(Code.FailedPrecondition, "ROLLOUT_ENDED", "the rollout has ended");
    const { sample, chatNumber } = request;
    const chat = askedBy(request, tools, (parent) => this.answered(sample, parent));
    const name = nameOf(this.request, sample, chatNumber);
    let sampling = this.samplings.get(name);
    if (!sampling) {
      const stop = new AbortController();
      sampling = { chat, stop, response: this.sample(name, chat, policy, stop.signal) };
      this.samplings.set(name, sampling);
    }
    const differs = sampling.chat.digest !== chat.digest;
    if (differs) throw refusal(Code.AlreadyExists, "CHAT_DIFFERS", "another chat has this number");
    return sampling.response;
  }

  /** Stops the sampling of the chats that an AbandonChat names. */
  abandon(request: v1.AbandonChatRequest): void {
    for (const [name, { chat, stop }] of this.samplings) {
      if (chat.response || !isNamed(chat.request, request)) continue;
      this.samplings.delete(name);
      stop.abort();
    }
  }

  /** Puts in the tokens and messages that the server left out of the outcome. */
  assemble({ samples }: v1.RolloutOutcome): void {
    for (const sample of samples) fillIn(sample, (chatNumber) => this.answered(sample.name, chatNumber));
  }

  private answered(sample: string, chatNumber: number): Asked | undefined {
    const chat = this.samplings.get(nameOf(this.request, sample, chatNumber))?.chat;
    return chat?.response && chat;
  }

  private async sample(name: string, chat: Asked, policy: Policy, stop: AbortSignal): Promise<v1.ChatResponse> {
    await Promise.resolve(); // `samplings` has it before the policy can throw
    try {
      chat.response = toResponse(await policy(chat, stop));
      return chat.response;
    } catch (error) {
      if (stop.aborted) throw new ConnectError("the sampling was stopped", Code.Canceled);
      this.samplings.delete(name); // asked again, it is sampled again
      throw ConnectError.from(error, Code.Internal);
    }
  }
}
