// The transport with streams (Attach), one after the other. They share an attachment id.

import { randomBytes } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  CancelFrameSchema,
  TrainerHelloSchema,
  type CancelFrame,
  type InitReply,
  type ServerHello,
  type TrainerHello,
} from "../gen/osmosis/rollout/v1/attach_pb.js";
import { fromStatus, isAnswer, retryAfter, sleep } from "./errors.js";
import { Stream } from "./stream.js";
import { Deferred, FEATURES, type Rollout, type Trainer, type Transport } from "./trainer.js";

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 5_000;
const MAX_REFS = 1_000; // of one OpenRollouts

export class Attachment implements Transport {
  readonly hello: TrainerHello;
  readonly cancels = new Map<string, CancelFrame>();
  readonly closing = new AbortController();
  private readonly live = new Set<Rollout>(); // in order of their start
  private stream: Stream | undefined; // undefined during a break
  private problem = "no answer"; // of the newest stream
  private window = 0; // the number of rollouts that may be open
  private ended!: Promise<void>;

  private constructor(readonly trainer: Trainer) {
    this.hello = create(TrainerHelloSchema, {
      attachmentId: randomBytes(16).toString("hex"),
      processId: randomBytes(16).toString("hex"),
      version: "osmosis-typescript 1",
      protocolMin: 1,
      protocolMax: 1,
      maxOpenChats: trainer.options.maxOpenChats ?? 256,
      history: trainer.options.history,
      features: FEATURES,
    });
  }

  static async open(trainer: Trainer, signal: AbortSignal): Promise<Attachment> {
    const attachment = new Attachment(trainer);
    const attached = new Deferred<void>();
    const aborted = (): void => {
      attachment.closing.abort();
      const { target } = trainer.options;
      attached.reject(new Error(`${target} cannot be reached: ${attachment.problem}`, { cause: signal.reason }));
    };
    signal.addEventListener("abort", aborted);
    attachment.ended = attachment.run(attached);
    await attached.promise.finally(() => signal.removeEventListener("abort", aborted));
    return attachment;
  }

  /** Opens a stream after each break. */
  private async run(attached: Deferred<void>): Promise<void> {
    let pause = FIRST_PAUSE;
    while (!this.closing.signal.aborted) {
      const stream = new Stream(this);
      try {
        await stream.follow((hello) => {
          this.take(stream, hello);
          attached.resolve();
          pause = FIRST_PAUSE;
        });
      } catch (problem) {
        const error = ConnectError.from(problem);
        this.problem = error.message;
        const busy = [Code.Unavailable, Code.ResourceExhausted].includes(error.code);
        const final = error.code === Code.Aborted || this.stream !== stream; // replaced; or the hello was refused
        if (isAnswer(error) && !busy && final) {
          this.trainer.failAll(error);
          attached.reject(error);
          return;
        }
      } finally {
        this.stream = undefined;
      }
      await sleep(pause, this.closing.signal);
      pause = Math.min(2 * pause, LONGEST_PAUSE);
    }
  }

  /** Begins to use a stream: sends what the server may not have. */
  private take(stream: Stream, hello: ServerHello): void {
    this.stream = stream;
    this.window = hello.maxOpenRollouts ?? 1024;
    this.hello.journalId = hello.journalId;
    const open = [...this.live].filter((rollout) => this.trainer.isOpen(rollout));
    for (const rollout of open) rollout.sent = rollout.accepted.settled;
    const refs = open.filter((rollout) => rollout.sent).map(({ request: { rolloutId, attempt } }) => ({ rolloutId, attempt }));
    while (refs.length) {
      stream.send({ case: "openRollouts", value: { rollouts: refs.splice(0, MAX_REFS) } });
    }
    for (const frame of this.cancels.values()) stream.send({ case: "cancel", value: frame });
    this.sendInits();
  }

  /** Sends Inits as far as the server's window allows. An Init is open until the outcome arrives. */
  sendInits(): void {
    for (const rollout of this.live) if (!this.trainer.isOpen(rollout)) this.live.delete(rollout);
    let open = [...this.live].filter((rollout) => rollout.sent).length;
    for (const rollout of this.live) {
      if (rollout.sent || !this.stream || open >= this.window) continue;
      rollout.sent = true;
      open++;
      this.stream.send({ case: "init", value: rollout.request });
    }
  }

  setWindow(window: number): void {
    this.window = window;
    this.sendInits();
  }

  setMaxOpenChats(count: number): void {
    this.hello.maxOpenChats = count;
    this.stream?.setWindow(count);
  }

  start(rollout: Rollout): void {
    this.live.add(rollout);
    this.sendInits();
  }

  cancel(rollout: Rollout): void {
    const { rolloutId, attempt } = rollout.request;
    if (!rollout.sent) return this.trainer.fail(rollout, new Error("cancelled")); // the server does not have it
    const request = { selection: { case: "rolloutId" as const, value: rolloutId }, attempt };
    const frame = create(CancelFrameSchema, { id: `${rolloutId} ${attempt}`, request });
    this.cancels.set(frame.id, frame);
    this.stream?.send({ case: "cancel", value: frame });
  }

  initAnswered({ rolloutId, attempt, result }: InitReply): void {
    const rollout = this.trainer.rollouts.get(rolloutId);
    if (!rollout || rollout.request.attempt !== attempt) return;
    if (result.case === "response") rollout.accepted.resolve(result.value.tools);
    if (result.case !== "status") return;
    const error = fromStatus(result.value);
    const pause = retryAfter(error);
    if (pause === undefined) return this.trainer.fail(rollout, error);
    setTimeout(() => {
      rollout.sent = rollout.accepted.settled; // until then it keeps its slot
      this.sendInits();
    }, pause);
  }

  /** Says goodbye, and waits until the server has closed the stream. */
  async close(): Promise<void> {
    const stream = this.stream;
    stream?.send({ case: "goodbye", value: {} });
    if (stream) await Promise.race([stream.ended.promise, sleep(LONGEST_PAUSE, this.closing.signal)]);
    this.closing.abort();
    await this.ended;
  }
}

