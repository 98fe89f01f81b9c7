// The rollouts of a trainer: their chats, their outcomes, their next attempts. Both transports call it.

import { create } from "@bufbuild/protobuf";
import { Code, type Client } from "@connectrpc/connect";
import { Rollout, type Policy } from "./rollout.js";
import { refusal, superseded } from "./wire/status.js";
import * as v1 from "./wire/v1.js";

const REMEMBERED = 3_600_000; // how long an ended rollout recognizes its outcome; Limits.outcome_ttl

export interface TrainerOptions {
  /** The agent server: HOST:PORT, or a URL that begins with https:// for TLS. */
  target: string;
  /** The token that the agent server requires. */
  token?: string;
  /** Samples the replies. */
  policy: Policy;
  /** Stores an outcome. Gets each once before the server gets its receipt. If it throws, the outcome comes again. */
  onOutcome?: (outcome: v1.RolloutOutcome) => void;
  /** HOST:PORT for callbacks; port 0 takes a free one. Without it the trainer opens a stream (Attach). */
  listen?: string;
  /** HOST:PORT at which the agent server reaches `listen`. The default is the address of the listener. */
  advertise?: string;
  /** Milliseconds between two questions whether the server still has a rollout, with callbacks. The default is 10,000. */
  pollInterval?: number;
  /** The form of histories. The default is full with callbacks, and delta over a stream. */
  history?: v1.HistoryForm;
  /** The number of chats that may be open over a stream. The default is 256. */
  maxOpenChats?: number;
}

export class Rollouts {
  readonly newest = new Map<string, Rollout>(); // the newest attempt of each
  send!: (rollout: Rollout) => void; // of the transport
  failure: unknown;

  constructor(
    readonly options: TrainerOptions,
    readonly client: Client<typeof v1.RolloutService>,
  ) {}

  /** Adds a rollout and sends it. */
  start(rollout: Rollout): Rollout {
    this.newest.set(rollout.request.rolloutId, rollout);
    this.send(rollout);
    return rollout;
  }

  /** Answers a chat, from either transport. */
  async answer(request: v1.ChatRequest): Promise<v1.ChatResponse> {
    const { rolloutId, attempt } = request;
    const { accepted } = this.find(rolloutId, attempt, Code.NotFound);
    const tools = request.tools?.tools ?? (await accepted.promise); // the answer to the Init may come later
    return this.find(rolloutId, attempt, Code.NotFound).answer(request, tools, this.options.policy);
  }

  /** Stops the sampling of chats whose replies are no longer wanted. */
  abandon(request: v1.AbandonChatRequest): void {
    const rollout = this.newest.get(request.rolloutId);
    if (rollout?.request.attempt !== (request.attempt || 1)) return;
    rollout.abandon(request);
    if (request.reason === "SUPERSEDED") this.fail(rollout, new Error("a higher attempt replaced the rollout"));
  }

  /** Records an outcome and returns its receipt. */
  record(outcome: v1.RolloutOutcome = create(v1.RolloutOutcomeSchema)): v1.Receipt {
    const { rolloutId, attempt, resultId } = outcome;
    const rollout = this.find(rolloutId, attempt, Code.InvalidArgument);
    if (rollout.resultId) return rollout.resultId === resultId ? v1.Receipt.ALREADY_RECORDED : v1.Receipt.CONFLICT;
    if (!rollout.isOpen) throw refusal(Code.Unavailable, "UNAVAILABLE", "the trainer does not wait for the rollout");
    rollout.assemble(outcome);
    this.options.onOutcome?.(outcome);
    rollout.resultId = resultId;
    rollout.result.resolve(outcome);
    this.end(rollout);
    return v1.Receipt.RECORDED;
  }

  /** Ends a rollout that has no outcome. */
  fail(rollout: Rollout, error: unknown): void {
    rollout.result.reject(error);
    this.end(rollout);
  }

  failAll(error: unknown): void {
    this.failure ??= error;
    for (const rollout of this.newest.values()) if (rollout.isOpen) this.fail(rollout, error);
  }

  /** Starts the next attempt of a rollout that the server has forgotten. */
  restart(rolloutId: string, attempt: number): void {
    const rollout = this.newest.get(rolloutId);
    if (!rollout?.isOpen || rollout.request.attempt !== attempt) return;
    rollout.end();
    this.start(new Rollout({ ...rollout.request, attempt: attempt + 1 }, rollout.result));
  }

  private end(rollout: Rollout): void {
    rollout.end();
    setTimeout(() => this.newest.delete(rollout.request.rolloutId), REMEMBERED).unref();
  }

  /** Returns an attempt, or throws the status with which a trainer refuses another one. */
  private find(rolloutId: string, attempt: number, unknown: Code): Rollout {
    const rollout = this.newest.get(rolloutId);
    const newest = rollout?.request.attempt ?? 0;
    const asked = attempt || 1;
    if (asked < newest) throw superseded(rolloutId, newest);
    if (rollout && asked === newest) return rollout;
    throw refusal(unknown, "ROLLOUT_UNKNOWN", `attempt ${asked} of ${rolloutId} was not started here`);
  }
}
