// The transport with one call for each message: the trainer calls the server, and the server calls the trainer.

import { randomUUID, timingSafeEqual } from "node:crypto";
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { isAnswer, refusal, retryAfter } from "./errors.js";
import type { Rollout } from "./rollout.js";
import { FEATURES, type Trainer } from "./trainer.js";
import * as v1 from "./v1.js";

const CALL_TIMEOUT = { timeoutMs: 30_000 };
const CHECK_INTERVAL = 10_000; // between two questions whether the server still has a rollout

export class Callbacks {
  private readonly server = http2.createServer(connectNodeAdapter({ routes: (router) => this.routes(router) }));
  private readonly sessions = new Set<http2.ServerHttp2Session>();
  private callback!: v1.Callback;

  constructor(
    private readonly trainer: Trainer,
    private readonly listen: string,
  ) {
    this.server.on("session", (session) => {
      this.sessions.add(session);
      session.on("close", () => this.sessions.delete(session));
    });
  }

  async open(signal: AbortSignal): Promise<void> {
    const { client, options } = this.trainer;
    const { features } = await client.getServerInfo({}, { signal });
    const [, host, port] = /^(.*):(\d+)$/.exec(this.listen) ?? [];
    await new Promise<void>((resolve, reject) => {
      this.server.once("error", reject).listen(Number(port), host, resolve);
    });
    const { address, port: taken } = this.server.address() as AddressInfo;
    this.callback = create(v1.CallbackSchema, {
      target: options.advertise ?? `${address}:${taken}`,
      history: options.history,
      runId: randomUUID(),
      protocol: 1,
      features: FEATURES,
      outcomeByReference: features.includes("outcome_by_reference"),
    });
  }

  /** Sends the Init until it is answered. Then asks from time to time whether the server still has the rollout. */
  async start(rollout: Rollout): Promise<void> {
    const { client } = this.trainer;
    const { rolloutId, attempt } = rollout.request;
    const callback = { ...this.callback, credential: rollout.credential };
    while (rollout.isOpen) {
      let pause: number | undefined = CHECK_INTERVAL;
      try {
        if (rollout.accepted.settled) await client.getRollout({ rolloutId, attempt }, CALL_TIMEOUT);
        else rollout.accepted.resolve((await client.init({ ...rollout.request, callback }, CALL_TIMEOUT)).tools);
      } catch (problem) {
        const error = ConnectError.from(problem);
        if (!isAnswer(error)) pause = 500;
        else if (!rollout.accepted.settled) pause = retryAfter(error);
        else if (error.code === Code.NotFound) this.trainer.restart(rolloutId, attempt);
        if (pause === undefined) return this.trainer.fail(rollout, error);
      }
      await sleep(pause, undefined, { signal: rollout.ended.signal }).catch(() => {});
    }
  }

  cancel({ request: { rolloutId, attempt } }: Rollout): void {
    const selection = { case: "rolloutId" as const, value: rolloutId };
    this.trainer.client.cancel({ selection, attempt }, CALL_TIMEOUT).catch(() => {}); // its time limit ends it
  }

  /** Answers the calls that are open, and closes the listener. */
  async close(): Promise<void> {
    this.trainer.failAll(new Error("the trainer is closed"));
    for (const session of this.sessions) session.close();
    await new Promise((resolve) => this.server.close(resolve));
  }

  private routes(router: ConnectRouter): void {
    router.service(v1.TrainerService, {
      chat: async (request, context) => {
        this.check(context, request.rolloutId);
        return await this.trainer.answer(request);
      },
      abandonChat: (request, context) => {
        this.check(context, request.rolloutId);
        this.trainer.abandon(request);
        return {};
      },
      complete: ({ outcome }, context) => {
        this.check(context, outcome?.rolloutId);
        return { receipt: this.trainer.record(outcome) };
      },
    });
  }

  /** Refuses a call without the credential of the rollout. */
  private check(context: HandlerContext, rolloutId: string | undefined): void {
    const shown = Buffer.from(context.requestHeader.get("authorization") ?? "");
    const owners = [...this.trainer.rollouts.values()].filter(({ credential }) => {
      const expected = Buffer.from(`Bearer ${credential}`);
      return shown.length === expected.length && timingSafeEqual(shown, expected);
    });
    if (owners.some(({ request }) => request.rolloutId === rolloutId)) return;
    if (owners.length)
      throw refusal(Code.PermissionDenied, "PERMISSION_DENIED", "the credential is of another rollout");
    throw refusal(Code.Unauthenticated, "UNAUTHENTICATED", "the credential is not of this trainer");
  }
}
