// The transport with one call for each message: the trainer calls the server, and the server calls the trainer.

import { randomUUID } from "node:crypto";
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import type { Rollout } from "./rollout.js";
import type { Rollouts } from "./rollouts.js";
import { hash } from "./wire/equality.js";
import { newCallback } from "./wire/frames.js";
import { hostAndPort } from "./wire/names.js";
import { isAnswer, refusal, retryAfter } from "./wire/status.js";
import * as v1 from "./wire/v1.js";

const CALL_TIMEOUT = { timeoutMs: 30_000 };
const POLL_INTERVAL = 10_000;

export class Callbacks {
  private readonly secret = randomUUID();
  private readonly server = http2.createServer(connectNodeAdapter({ routes: (router) => this.routes(router) }));
  private readonly sessions = new Set<http2.ServerHttp2Session>();
  private callback!: v1.Callback;

  constructor(private readonly rollouts: Rollouts) {
    this.server.on("session", (session) => {
      this.sessions.add(session.once("close", () => this.sessions.delete(session)));
    });
  }

  async open(signal: AbortSignal): Promise<void> {
    const { client, options } = this.rollouts;
    const { features } = await client.getServerInfo({}, { signal });
    const { host, port } = hostAndPort(options.listen!);
    await new Promise<void>((resolve, reject) => {
      this.server.once("error", reject).listen(port, host, resolve);
    });
    const { address, port: taken } = this.server.address() as AddressInfo;
    this.callback = newCallback(options.advertise ?? `${address}:${taken}`, options.history, features);
  }

  /** Sends the Init until it is answered. Then asks from time to time whether the server still has the rollout. */
  async start(rollout: Rollout): Promise<void> {
    const { client, options } = this.rollouts;
    const { rolloutId, attempt } = rollout.request;
    const callback = { ...this.callback, credential: hash(this.secret, rolloutId) };
    while (rollout.isOpen) {
      let pause: number | undefined = options.pollInterval ?? POLL_INTERVAL;
      try {
        if (rollout.accepted.settled) await client.getRollout({ rolloutId, attempt }, CALL_TIMEOUT);
        else rollout.accepted.resolve((await client.init({ ...rollout.request, callback }, CALL_TIMEOUT)).tools);
      } catch (problem) {
        const error = ConnectError.from(problem);
        if (!isAnswer(error)) pause = 500;
        else if (!rollout.accepted.settled) pause = retryAfter(error);
        else if (error.code === Code.NotFound) this.rollouts.restart(rolloutId, attempt);
        if (pause === undefined) return this.rollouts.fail(rollout, error);
      }
      await sleep(pause, undefined, { signal: rollout.ended.signal }).catch(() => {});
    }
  }

  cancel({ request: { rolloutId, attempt } }: Rollout): void {
    const selection = { case: "rolloutId" as const, value: rolloutId };
    this.rollouts.client.cancel({ selection, attempt }, CALL_TIMEOUT).catch(() => {}); // its time limit ends it
  }

  /** Answers the calls that are open, and closes the listener. */
  async close(): Promise<void> {
    this.rollouts.failAll(new Error("the trainer is closed"));
    for (const session of this.sessions) session.close();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private routes(router: ConnectRouter): void {
    router.service(v1.TrainerService, {
      chat: (request, context) => this.ownerFor(request.rolloutId, context).answer(request),
      abandonChat: (request, context) => (this.ownerFor(request.rolloutId, context).abandon(request), {}),
      complete: ({ outcome }, context) => ({ receipt: this.ownerFor(outcome?.rolloutId, context).record(outcome) }),
    });
  }

  /** Returns the rollouts for a call with the credential of the rollout, and refuses another call. */
  private ownerFor(rolloutId: string | undefined, context: HandlerContext): Rollouts {
    const shown = context.requestHeader.get("authorization") ?? "";
    const isOf = (id: string): boolean => hash(shown) === hash(`Bearer ${hash(this.secret, id)}`); // in constant time
    if (rolloutId !== undefined && isOf(rolloutId)) return this.rollouts;
    const isOurs = [...this.rollouts.newest.keys()].some(isOf);
    if (isOurs) throw refusal(Code.PermissionDenied, "PERMISSION_DENIED", "the credential is of another rollout");
    throw refusal(Code.Unauthenticated, "UNAUTHENTICATED", "the credential is not of this trainer");
  }
}
