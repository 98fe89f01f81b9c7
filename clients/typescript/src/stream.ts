// One stream of an attachment: its frames, windows, heartbeats and its end.

import { create, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import {
  TrainerFrameSchema,
  type ServerFrame,
  type ServerHello,
  type TrainerFrame,
} from "../gen/osmosis/rollout/v1/attach_pb.js";
import type { AbandonChatRequest, ChatRequest } from "../gen/osmosis/rollout/v1/chat_pb.js";
import type { RolloutOutcome } from "../gen/osmosis/rollout/v1/outcome_pb.js";
import { AttachRequestSchema, type AttachRequest } from "../gen/osmosis/rollout/v1/services_pb.js";
import type { Attachment } from "./attachment.js";
import { isNamed } from "./chats.js";
import { refusal, sleep, toStatus } from "./errors.js";
import { Deferred } from "./trainer.js";

export type Frame = NonNullable<MessageInitShape<typeof TrainerFrameSchema>["frame"]>;

const MAX_FRAMES = 4096; // of one stream message
const MAX_BYTES = 1 << 20;
const MAX_WAITING = 1024; // a trainer stops reading while its own answers wait
const HELLO_TIMEOUT = 45_000;

export class Stream {
  readonly ended = new Deferred<void>();
  private readonly cut = new AbortController();
  private readonly greeted = new Deferred<ServerHello>();
  private readonly open = new Map<string, ChatRequest>(); // chats
  private waiting: TrainerFrame[] = [];
  private wake = (): void => {};
  private largest: number; // window of chats

  constructor(private readonly attachment: Attachment) {
    this.largest = attachment.hello.maxOpenChats ?? 1024;
  }

  /** Opens the stream and follows it to its end. Calls `greeted` after the hellos. */
  async follow(greeted: (hello: ServerHello) => void): Promise<void> {
    const signal = AbortSignal.any([this.attachment.closing.signal, this.cut.signal]);
    let timeout = HELLO_TIMEOUT;
    let silence = setTimeout(() => this.cut.abort(), timeout);
    try {
      for await (const { frames } of this.attachment.trainer.client.attach(this.requests(), { signal })) {
        clearTimeout(silence);
        for (const frame of frames) {
          if (this.greeted.settled) this.handle(frame);
          else if (frame.frame.case !== "hello") throw new Error("the first frame of the server is no hello");
          else {
            const hello = frame.frame.value;
            timeout = milliseconds(hello.limits?.heartbeatTimeout, timeout);
            this.greeted.resolve(hello);
            greeted(hello);
          }
        }
        while (this.waiting.length > MAX_WAITING && !signal.aborted) await sleep(10, signal);
        silence = setTimeout(() => this.cut.abort(), timeout);
      }
    } finally {
      clearTimeout(silence);
      this.cut.abort();
      this.wake();
      this.greeted.reject(new Error("the stream has ended"));
      this.ended.resolve();
    }
  }

  /** Sends a frame. It is lost if the stream ends: the next stream begins with what was not answered. */
  send(frame: Frame): void {
    this.waiting.push(create(TrainerFrameSchema, { frame }));
    this.wake();
  }

  setWindow(count: number): void {
    this.largest = Math.max(this.largest, count);
    this.send({ case: "window", value: { maxOpenChats: count } });
  }

  /** Yields the hello, then the frames up to Goodbye, and a heartbeat after an interval without a frame. */
  private async *requests(): AsyncGenerator<AttachRequest> {
    const hello = create(TrainerFrameSchema, { frame: { case: "hello", value: this.attachment.hello } });
    yield create(AttachRequestSchema, { frames: [hello] });
    const interval = milliseconds((await this.greeted.promise).limits?.heartbeatInterval, 15_000);
    while (!this.cut.signal.aborted) {
      if (!this.waiting.length) {
        await new Promise<void>((resolve) => {
          const timer = setTimeout(resolve, interval);
          this.wake = () => (clearTimeout(timer), resolve());
        });
        if (this.cut.signal.aborted) return;
        if (!this.waiting.length) this.send({ case: "heartbeat", value: {} });
      }
      let count = 0;
      let bytes = 0;
      while (count < Math.min(this.waiting.length, MAX_FRAMES)) {
        bytes += toBinary(TrainerFrameSchema, this.waiting[count]!).length;
        if (count > 0 && bytes > MAX_BYTES) break;
        count++;
      }
      const frames = this.waiting.splice(0, count);
      yield create(AttachRequestSchema, { frames });
      if (frames.at(-1)?.frame.case === "goodbye") return;
    }
  }

  private handle({ frame, $unknown }: ServerFrame): void {
    const { attachment } = this;
    const { trainer } = attachment;
    if (frame.case === "chat") this.chat(frame.value);
    else if (frame.case === "abandonChat") this.abandon(frame.value);
    else if (frame.case === "complete") this.complete(frame.value.outcome);
    else if (frame.case === "initReply") attachment.initAnswered(frame.value);
    else if (frame.case === "window") attachment.setWindow(frame.value.maxOpenRollouts);
    else if (frame.case === "draining") attachment.setWindow(0);
    else if (frame.case === "cancelReply") attachment.cancels.delete(frame.value.id);
    else if (frame.case === "unknownRollouts") {
      for (const { rolloutId, attempt } of frame.value.rollouts) {
        const rollout = trainer.rollouts.get(rolloutId);
        if (rollout?.request.attempt === attempt) trainer.restart(rollout);
      }
    } else if (frame.case === undefined && $unknown?.[0]) {
      this.send({ case: "unknownFrame", value: { frameNumber: $unknown[0].no } });
    }
    attachment.sendInits();
  }

  /** Answers a chat on the stream that asked. If the stream breaks before that, the server asks again. */
  private chat(request: ChatRequest): void {
    const { rolloutId, attempt, sample, chatNumber } = request;
    const name = { rolloutId, attempt, sample, chatNumber };
    const key = JSON.stringify(name);
    if (this.open.has(key)) return; // the server gets one answer
    if (this.open.size >= (this.attachment.hello.maxOpenChats ?? 1024)) {
      const error = refusal(Code.ResourceExhausted, "WINDOW_EXCEEDED", "a chat beyond the window");
      if (this.open.size >= this.largest) throw error;
      return this.send({ case: "chatReply", value: { ...name, result: { case: "status", value: toStatus(error) } } });
    }
    this.open.set(key, request);
    this.attachment.trainer
      .answer(request)
      .then(
        (response) => ({ case: "response" as const, value: response }),
        (error: unknown) => ({ case: "status" as const, value: toStatus(error) }),
      )
      .then((result) => {
        if (this.open.get(key) !== request) return; // abandoned
        this.open.delete(key);
        this.send({ case: "chatReply", value: { ...name, result } });
      });
  }

  private abandon(request: AbandonChatRequest): void {
    for (const [key, chat] of this.open) {
      const same = chat.rolloutId === request.rolloutId && chat.attempt === request.attempt;
      if (same && isNamed(chat, request.sample, request.chatNumber)) this.open.delete(key);
    }
    this.attachment.trainer.abandon(request);
  }

  private complete(outcome: RolloutOutcome | undefined): void {
    const { rolloutId = "", attempt = 0, resultId = "" } = outcome ?? {};
    let result: { case: "receipt"; value: number } | { case: "status"; value: ReturnType<typeof toStatus> };
    try {
      result = { case: "receipt", value: this.attachment.trainer.record(outcome) };
    } catch (error) {
      result = { case: "status", value: toStatus(error) };
    }
    this.send({ case: "completeReply", value: { rolloutId, attempt, resultId, result } });
  }
}

function milliseconds(duration: { seconds: bigint; nanos: number } | undefined, otherwise: number): number {
  return duration ? Number(duration.seconds) * 1000 + duration.nanos / 1e6 : otherwise;
}
