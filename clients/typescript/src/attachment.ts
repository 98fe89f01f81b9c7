// The transport with streams (Attach), one after the other. They share an attachment id.

import { randomUUID } from "node:crypto";
import { PassThrough } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Rollout } from "./rollout.js";
import type { Rollouts } from "./rollouts.js";
import { Deferred } from "./wire/deferred.js";
import { chatReply, completeReply, newHello, type Frame } from "./wire/frames.js";
import { isNamed, nameOf } from "./wire/names.js";
import { fromStatus, isAnswer, retryAfter } from "./wire/status.js";
import * as v1 from "./wire/v1.js";

type ServerFrame = Exclude<v1.ServerFrame["frame"], { case: undefined }>;
type Handlers = { [Kind in ServerFrame as Kind["case"]]?: (value: Kind["value"]) => void };

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;
const HELLO_TIMEOUT = 45_000;
const MAX_REFS = 1_000; // of one OpenRollouts

export class Attachment {
  private readonly hello: v1.TrainerHello;
  private readonly attached = new Deferred<void>();
  private readonly closing = new AbortController();
  private ended: Promise<void> | undefined;
  private isLeaving = false;
  private problem = "no answer"; // of the newest stream
  private readonly live = new Set<Rollout>(); // in order of their start
  private readonly cancels = new Map<string, v1.CancelFrame>(); // not answered
  private window = 0; // the number of rollouts that may be open
  private stream: PassThrough | undefined; // what the trainer sends; undefined during a break
  private chats = new Map<string, v1.ChatRequest>(); // chats of the stream without an answer

  constructor(private readonly rollouts: Rollouts) {
    this.hello = newHello(rollouts.options.maxOpenChats ?? 256, rollouts.options.history);
  }

  async open(signal: AbortSignal): Promise<void> {
    signal.addEventListener("abort", () => {
      if (!this.attached.settled) this.closing.abort();
      this.attached.reject(new Error(`${this.rollouts.options.target} cannot be reached: ${this.problem}`));
    });
    this.ended = this.run();
    await this.attached.promise;
  }

  start(rollout: Rollout): void {
    this.live.add(rollout);
    this.sendInits();
  }

  cancel(rollout: Rollout): void {
    const { rolloutId, attempt } = rollout.request;
    if (!rollout.sent) return this.rollouts.fail(rollout, new Error("cancelled")); // the server does not have it
    const request = { selection: { case: "rolloutId" as const, value: rolloutId }, attempt };
    const frame = create(v1.CancelFrameSchema, { id: randomUUID(), request });
    this.cancels.set(frame.id, frame);
    this.send({ case: "cancel", value: frame });
  }

  /** Says goodbye, and waits until the server has closed the stream. */
  async close(): Promise<void> {
    this.isLeaving = true;
    this.send({ case: "goodbye", value: {} });
    this.stream?.end();
    await Promise.race([this.ended, sleep(this.stream ? LONGEST_PAUSE : 0)]);
    this.closing.abort();
    await this.ended;
  }

  /** Opens a stream after each break. */
  private async run(): Promise<void> {
    let pause = FIRST_PAUSE;
    while (!this.isLeaving && !this.closing.signal.aborted) {
      try {
        await this.follow();
      } catch (problem) {
        const error = ConnectError.from(problem);
        this.problem = error.message;
        const busy = [Code.Unavailable, Code.ResourceExhausted].includes(error.code);
        if (isAnswer(error) && (this.stream ? error.code === Code.Aborted : !busy)) {
          this.attached.reject(error); // another stream has the attachment id, or the hello was refused
          return this.rollouts.failAll(error);
        }
      }
      pause = this.stream ? FIRST_PAUSE : Math.min(2 * pause, LONGEST_PAUSE);
      this.stream = undefined;
      if (!this.isLeaving) await sleep(pause, undefined, { signal: this.closing.signal }).catch(() => {});
    }
  }

  /** Opens a stream and follows it to its end. */
  private async follow(): Promise<void> {
    const requests = new PassThrough({ objectMode: true }); // the windows of both sides bound it
    const silent = new AbortController();
    const signal = AbortSignal.any([this.closing.signal, silent.signal]);
    let silence = setTimeout(() => silent.abort(), HELLO_TIMEOUT);
    let heartbeats: NodeJS.Timeout | undefined;
    requests.write({ frames: [{ frame: { case: "hello", value: this.hello } }] });
    try {
      for await (const { frames } of this.rollouts.client.attach(requests, { signal })) {
        silence.refresh();
        for (const each of frames) {
          if (this.stream) this.handle(each);
          else if (each.frame.case !== "hello") throw new Error("the first frame of the server is not a hello");
          else {
            const { heartbeatInterval, heartbeatTimeout } = each.frame.value.limits!;
            clearTimeout(silence);
            silence = setTimeout(() => silent.abort(), durationMs(heartbeatTimeout!));
            heartbeats = setInterval(() => this.send({ case: "heartbeat", value: {} }), durationMs(heartbeatInterval!));
            this.begin(requests, each.frame.value);
          }
        }
      }
    } finally {
      clearTimeout(silence);
      clearInterval(heartbeats);
      silent.abort();
      requests.end();
    }
  }

  /** Begins to use a stream: sends what the server may not have. */
  private begin(requests: PassThrough, hello: v1.ServerHello): void {
    this.stream = requests;
    this.chats = new Map();
    this.window = hello.maxOpenRollouts ?? 1024;
    this.hello.journalId = hello.journalId;
    for (const rollout of this.live) rollout.sent = rollout.accepted.settled;
    const sent = [...this.live].filter((rollout) => rollout.isOpen && rollout.sent);
    const refs = sent.map(({ request: { rolloutId, attempt } }) => ({ rolloutId, attempt }));
    while (refs.length) this.send({ case: "openRollouts", value: { rollouts: refs.splice(0, MAX_REFS) } });
    for (const frame of this.cancels.values()) this.send({ case: "cancel", value: frame });
    this.sendInits();
    this.attached.resolve();
  }

  /** Sends a frame. It is lost in a break: the next stream begins with what was not answered. */
  private send(frame: Frame): void {
    if (this.stream?.writable) this.stream.write({ frames: [{ frame }] });
  }

  /** Sends Inits as far as the server's window allows. An Init is open until the outcome arrives. */
  private sendInits(): void {
    for (const rollout of this.live) if (!rollout.isOpen) this.live.delete(rollout);
    let open = [...this.live].filter((rollout) => rollout.sent).length;
    for (const rollout of this.live) {
      if (rollout.sent || !this.stream || open >= this.window) continue;
      rollout.sent = true;
      open++;
      this.send({ case: "init", value: rollout.request });
    }
  }

  /** What the trainer does with a frame, by its kind. It ignores the other kinds of the protocol. */
  private readonly handlers: Handlers = {
    chat: (request) => this.chat(request),
    abandonChat: (request) => this.abandon(request),
    complete: ({ outcome }) => this.send(completeReply(outcome, () => this.rollouts.record(outcome))),
    initReply: (reply) => this.initAnswered(reply),
    cancelReply: ({ id }) => this.cancels.delete(id),
    unknownRollouts: ({ rollouts }) => rollouts.forEach((each) => this.rollouts.restart(each.rolloutId, each.attempt)),
    window: ({ maxOpenRollouts }) => (this.window = maxOpenRollouts),
    draining: () => (this.window = 0),
  };

  private handle({ frame, $unknown }: v1.ServerFrame): void {
    const handler = frame.case && (this.handlers[frame.case] as ((value: unknown) => void) | undefined);
    handler?.(frame.value);
    if (!frame.case && $unknown) this.send({ case: "unknownFrame", value: { frameNumber: $unknown[0]?.no } });
    this.sendInits();
  }

  private initAnswered({ rolloutId, attempt, result }: v1.InitReply): void {
    const rollout = this.rollouts.newest.get(rolloutId);
    if (!rollout || rollout.request.attempt !== attempt) return;
    if (result.case === "response") rollout.accepted.resolve(result.value.tools);
    if (result.case !== "status") return;
    const error = fromStatus(result.value);
    const pause = retryAfter(error);
    if (pause === undefined) return this.rollouts.fail(rollout, error);
    setTimeout(() => {
      rollout.sent = rollout.accepted.settled; // until then it keeps its slot
      this.sendInits();
    }, pause);
  }

  /** Answers a chat on the stream that asked. If the stream breaks before that, the server asks again. */
  private chat(request: v1.ChatRequest): void {
    const name = nameOf(request, request.sample, request.chatNumber);
    if (this.chats.has(name)) return; // the server gets one answer
    if (this.chats.size >= this.hello.maxOpenChats!) throw new Error("the server asks a chat beyond the window");
    this.chats.set(name, request);
    void chatReply(request, this.rollouts.answer(request)).then((frame) => {
      if (this.chats.get(name) !== request) return; // a break, or abandoned
      this.chats.delete(name);
      this.send(frame);
    });
  }

  private abandon(request: v1.AbandonChatRequest): void {
    for (const [name, chat] of this.chats) if (isNamed(chat, request)) this.chats.delete(name);
    this.rollouts.abandon(request);
  }
}
