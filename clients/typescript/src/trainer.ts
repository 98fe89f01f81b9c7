// A trainer: it runs rollouts on one agent server and answers their chats with a policy.

import { randomUUID } from "node:crypto";
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Attachment } from "./attachment.js";
import { Callbacks } from "./callbacks.js";
import { Rollout } from "./rollout.js";
import { Rollouts, type TrainerOptions } from "./rollouts.js";
import * as v1 from "./wire/v1.js";

const CONNECT_TIMEOUT = 30_000;

export class Trainer {
  private readonly rollouts: Rollouts;
  private readonly transport: Attachment | Callbacks;

  private constructor(options: TrainerOptions) {
    const authorize: Interceptor = (next) => (request) => {
      if (options.token) request.header.set("authorization", `Bearer ${options.token}`);
      return next(request);
    };
    const baseUrl = options.target.includes("://") ? options.target : `http://${options.target}`;
    const client = createClient(v1.RolloutService, createGrpcTransport({ baseUrl, interceptors: [authorize] }));
    this.rollouts = new Rollouts(options, client);
    this.transport = options.listen === undefined ? new Attachment(this.rollouts) : new Callbacks(this.rollouts);
    this.rollouts.send = (rollout) => void this.transport.start(rollout);
  }

  /** Connects to an agent server. Rejects if it refuses the trainer, or cannot be reached for 30 seconds. */
  static async connect(options: TrainerOptions): Promise<Trainer> {
    const trainer = new Trainer(options);
    await trainer.transport.open(AbortSignal.timeout(CONNECT_TIMEOUT));
    return trainer;
  }

  /**
   * Runs a rollout and returns its outcome, which may be a failure. Without a `rolloutId` it makes one. If `signal`
   * aborts, the rollout is cancelled at the server, and the promise rejects.
   */
  async rollout(
    request: MessageInitShape<typeof v1.InitRequestSchema>,
    signal?: AbortSignal,
  ): Promise<v1.RolloutOutcome> {
    if (this.rollouts.failure !== undefined) throw this.rollouts.failure;
    const rolloutId = request.rolloutId || randomUUID();
    if (this.rollouts.newest.has(rolloutId)) throw new Error(`rollout ${rolloutId} was started before`);
    const init = create(v1.InitRequestSchema, { ...request, rolloutId, attempt: 1 });
    const { result } = this.rollouts.start(new Rollout(init));
    const aborted = (): void => {
      const newest = this.rollouts.newest.get(rolloutId);
      if (newest?.isOpen) this.transport.cancel(newest);
      result.reject(signal?.reason);
    };
    if (signal?.aborted) aborted();
    signal?.addEventListener("abort", aborted);
    return result.promise.finally(() => signal?.removeEventListener("abort", aborted));
  }

  /** Leaves the agent server. Open rollouts reject; over a stream, the server ends them at once. */
  async close(): Promise<void> {
    await this.transport.close();
    this.rollouts.failAll(new Error("the trainer is closed"));
  }
}

