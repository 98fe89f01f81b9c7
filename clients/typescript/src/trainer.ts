// A trainer: it runs rollouts on one agent server and answers their chats with a policy.

import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Client, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import type { AbandonChatRequest, ChatRequest, ChatResponse } from "../gen/osmosis/rollout/v1/chat_pb.js";
import { CurrentAttemptSchema } from "../gen/osmosis/rollout/v1/error_pb.js";
import type { Tool } from "../gen/osmosis/rollout/v1/message_pb.js";
import { Receipt, type RolloutOutcome } from "../gen/osmosis/rollout/v1/outcome_pb.js";
import { HistoryForm, InitRequestSchema, type InitRequest } from "../gen/osmosis/rollout/v1/rollout_pb.js";
import { RolloutService } from "../gen/osmosis/rollout/v1/services_pb.js";
import { Attachment } from "./attachment.js";
import { Callbacks } from "./callbacks.js";
import { ChatCache, type Policy } from "./chats.js";
import { refusal } from "./errors.js";
import { assemble, type Outcome } from "./outcome.js";

export const FEATURES = ["abandon_chat", "goodbye"];
const MAX_ENDED = 10_000; // ended rollouts whose outcomes the trainer recognizes when they come again

export interface TrainerOptions {
  /** The agent server: HOST:PORT, or a URL that begins with https:// for TLS. */
  target: string;
  /** The token that the agent server requires. */
  token?: string;
  /** Samples the replies. */
  policy: Policy;
  /**
   * Gets each outcome once, before the server gets its receipt. A trainer stores the outcome here. If it
   * throws, the server reports the outcome again.
   */
  onOutcome?: (outcome: Outcome) => void;
  /** HOST:PORT for callbacks; port 0 takes a free one. Without it the trainer opens a stream (Attach). */
  listen?: string;
  /** HOST:PORT at which the agent server reaches `listen`. The default is the address of the listener. */
  advertise?: string;
  /** The form of histories. The default is full with callbacks, and delta over a stream. */
  history?: HistoryForm;
  /** The number of chats that may be open over a stream; the default is 256. See `setMaxOpenChats`. */
  maxOpenChats?: number;
}

/** Carries the messages of a trainer. */
export interface Transport {
  start(rollout: Rollout): void;
  cancel(rollout: Rollout): void;
  close(): Promise<void>;
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

/** One attempt of a rollout. All attempts of a rollout share its result. */
export class Rollout {
  readonly stop = new AbortController(); // of its samplings
  readonly accepted = new Deferred<Tool[]>();
  readonly chats = new ChatCache();
  sent = false; // over the present stream: the Init was sent
  constructor(
    readonly request: InitRequest,
    readonly result = new Deferred<Outcome>(),
    readonly credential = randomUUID() as string, // of its callbacks
  ) {}

  leave(): void {
    this.stop.abort();
    this.chats.clear();
    this.accepted.resolve([]);
  }
}

export class Trainer {
  readonly rollouts = new Map<string, Rollout>(); // the newest attempt of each
  readonly client: Client<typeof RolloutService>;
  private readonly resultIds = new Map<Rollout, string>(); // of ended rollouts, oldest first
  private transport!: Transport;
  private failure: unknown;

  private constructor(readonly options: TrainerOptions) {
    const url = options.target.includes("://") ? options.target : `http://${options.target}`;
    const authorize: Interceptor = (next) => (request) => {
      if (options.token) request.header.set("authorization", `Bearer ${options.token}`);
      return next(request);
    };
    const transport = createGrpcTransport({ baseUrl: url, interceptors: [authorize] });
    this.client = createClient(RolloutService, transport);
  }

  /** Connects to an agent server. Rejects if it refuses the trainer, or if `signal` aborts first: after 30 seconds. */
  static async connect(options: TrainerOptions, signal = AbortSignal.timeout(30_000)): Promise<Trainer> {
    const trainer = new Trainer(options);
    const { listen } = options;
    trainer.transport = await (listen === undefined
      ? Attachment.open(trainer, signal)
      : Callbacks.open(trainer, listen, signal));
    return trainer;
  }

  /**
   * Runs a rollout and returns its outcome, which may be a failure. Without a `rolloutId` it makes one. If `signal`
   * aborts, the rollout is cancelled at the server, and the promise rejects.
   */
  async rollout(request: MessageInitShape<typeof InitRequestSchema>, signal?: AbortSignal): Promise<Outcome> {
    if (this.failure !== undefined) throw this.failure;
    const rollout = new Rollout(create(InitRequestSchema, request));
    rollout.request.rolloutId ||= randomUUID();
    rollout.request.attempt ||= 1;
    const { rolloutId, attempt } = rollout.request;
    const lower = this.rollouts.get(rolloutId);
    if (lower && lower.request.attempt >= attempt) {
      throw new ConnectError(`rollout ${rolloutId} has attempt ${lower.request.attempt}`, Code.AlreadyExists);
    }
    if (lower) this.fail(lower, new Error(`attempt ${attempt} replaced the rollout`));
    this.rollouts.set(rolloutId, rollout);
    this.transport.start(rollout);
    const aborted = (): void => {
      const newest = this.rollouts.get(rolloutId);
      if (newest && !rollout.result.settled) this.transport.cancel(newest);
      rollout.result.reject(signal?.reason);
    };
    if (signal?.aborted) aborted();
    signal?.addEventListener("abort", aborted);
    return rollout.result.promise.finally(() => signal?.removeEventListener("abort", aborted));
  }

  /** Changes the number of chats that the server may have open over a stream; 0 pauses. */
  setMaxOpenChats(count: number): void {
    if (this.transport instanceof Attachment) this.transport.setMaxOpenChats(count);
  }

  /** Leaves the agent server. Open rollouts reject; over a stream, the server ends them at once. */
  async close(): Promise<void> {
    await this.transport.close();
    this.failAll(new Error("the trainer is closed"));
  }

  /** Ends a rollout that has no outcome. */
  fail(rollout: Rollout, error: unknown): void {
    if (!rollout.result.settled) rollout.result.reject(error);
    rollout.leave();
    this.remember(rollout, "");
  }

  failAll(error: unknown): void {
    this.failure ??= error;
    for (const rollout of this.rollouts.values()) if (this.isOpen(rollout)) this.fail(rollout, error);
  }

  /** Starts the next attempt of a rollout that the server has forgotten. */
  restart(rollout: Rollout): void {
    if (!this.isOpen(rollout)) return;
    rollout.leave();
    const next = new Rollout({ ...rollout.request, attempt: rollout.request.attempt + 1 }, rollout.result, rollout.credential);
    this.rollouts.set(next.request.rolloutId, next);
    this.transport.start(next);
  }

  /** Returns whether an attempt is the newest one and has not ended at its server. */
  isOpen(rollout: Rollout): boolean {
    return this.rollouts.get(rollout.request.rolloutId) === rollout && !this.resultIds.has(rollout);
  }

  /** Returns an attempt, or throws the status with which a trainer refuses another one. */
  find(rolloutId: string, attempt: number, unknown: Code): Rollout {
    const rollout = this.rollouts.get(rolloutId);
    const newest = rollout?.request.attempt ?? 0;
    if (!rollout || (attempt || 1) > newest) {
      throw refusal(unknown, "ROLLOUT_UNKNOWN", `attempt ${attempt || 1} of ${rolloutId} was not started here`);
    }
    if ((attempt || 1) < newest) {
      const detail = { desc: CurrentAttemptSchema, value: { rolloutId, attempt: newest } };
      throw refusal(Code.Aborted, "ATTEMPT_SUPERSEDED", `rollout ${rolloutId} is at attempt ${newest}`, detail);
    }
    return rollout;
  }

  /** Answers a chat. It samples each chat once, however often it is asked, also if the caller leaves. */
  async answer(request: ChatRequest): Promise<ChatResponse> {
    const { rolloutId, attempt } = request;
    const { accepted } = this.find(rolloutId, attempt, Code.NotFound);
    const tools = request.tools?.tools ?? (await accepted.promise); // the answer to the Init may come later
    const rollout = this.find(rolloutId, attempt, Code.NotFound);
    if (!this.isOpen(rollout)) throw refusal(Code.FailedPrecondition, "ROLLOUT_ENDED", `rollout ${rolloutId} has ended`);
    return rollout.chats.answer(request, tools, this.options.policy, rollout.stop.signal);
  }

  /** Records an outcome and returns its receipt. */
  record(reported: RolloutOutcome | undefined): Receipt {
    const { rolloutId = "", attempt = 0, resultId = "" } = reported ?? {};
    const rollout = this.find(rolloutId, attempt, Code.InvalidArgument);
    const known = this.resultIds.get(rollout);
    if (known === "") throw refusal(Code.Unavailable, "UNAVAILABLE", "the trainer no longer waits for the rollout");
    if (known !== undefined) return known === resultId ? Receipt.ALREADY_RECORDED : Receipt.CONFLICT;
    const outcome = assemble(reported!, rollout.chats);
    this.options.onOutcome?.(outcome);
    this.remember(rollout, resultId);
    rollout.result.resolve(outcome);
    rollout.leave();
    return Receipt.RECORDED;
  }

  /** Stops the sampling of chats whose replies are no longer wanted. */
  abandon(request: AbandonChatRequest): void {
    const rollout = this.rollouts.get(request.rolloutId);
    if (rollout?.request.attempt !== (request.attempt || 1)) return;
    rollout.chats.abandon(request);
    if (request.reason === "SUPERSEDED") this.fail(rollout, new Error("a higher attempt replaced the rollout"));
  }

  private remember(rollout: Rollout, resultId: string): void {
    this.resultIds.set(rollout, resultId);
    if (this.resultIds.size <= MAX_ENDED) return;
    const [oldest] = this.resultIds.keys();
    if (oldest && this.rollouts.get(oldest.request.rolloutId) === oldest) {
      this.rollouts.delete(oldest.request.rolloutId);
    }
    this.resultIds.delete(oldest!);
  }
}
