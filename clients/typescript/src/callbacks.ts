// The transport with one call for each message: the trainer calls the server, and the server calls the trainer.

import { randomBytes, timingSafeEqual } from "node:crypto";
import * as http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, type ConnectRouter, type HandlerContext } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { CallbackSchema, type Callback } from "../gen/osmosis/rollout/v1/rollout_pb.js";
import { TrainerService } from "../gen/osmosis/rollout/v1/services_pb.js";
import { isAnswer, refusal, retryAfter, sleep } from "./errors.js";
import { FEATURES, type Rollout, type Trainer, type Transport } from "./trainer.js";

const CALL_TIMEOUT = { timeoutMs: 30_000 };
const CLOSE_TIMEOUT = 5_000;
const CHECK_INTERVAL = 10_000; // between two questions whether the server still has a rollout

export class Callbacks implements Transport {
  private readonly server = http2.createServer(connectNodeAdapter({ routes: (router) => this.routes(router) }));
  private readonly sessions = new Set<http2.ServerHttp2Session>();
  private callback!: Callback;

  private constructor(private readonly trainer: Trainer) {
    this.server.on("session", (session) => {
      this.sessions.add(session);
      session.on("close", () => this.sessions.delete(session));
    });
  }

  static async open(trainer: Trainer, listen: string, signal: AbortSignal): Promise<Callbacks> {
    const { features } = await trainer.client.getServerInfo({}, { signal });
    const made = new Callbacks(trainer);
    const [, host, port] = /^(.*):(\d+)$/.exec(listen) ?? [];
    await new Promise<void>((resolve, reject) => {
      made.server.once("error", reject).listen(Number(port), host, resolve);
    });
    const { address, port: taken } = made.server.address() as AddressInfo;
    made.callback = create(CallbackSchema, {
      target: trainer.options.advertise ?? `${address}:${taken}`,
      history: trainer.options.history,
      runId: randomBytes(16).toString("hex"),
      protocol: 1,
      features: FEATURES,
      outcomeByReference: features.includes("outcome_by_reference"),
    });
    return made;
  }

  start(rollout: Rollout): void {
    void this.follow(rollout);
  }

  cancel({ request: { rolloutId, attempt } }: Rollout): void {
    const selection = { case: "rolloutId" as const, value: rolloutId };
    this.trainer.client.cancel({ selection, attempt }, CALL_TIMEOUT).catch(() => {}); // its time limit ends it
  }

  async close(): Promise<void> {
    for (const session of this.sessions) session.close(); // answers that wait are sent
    const timer = setTimeout(() => this.sessions.forEach((session) => session.destroy()), CLOSE_TIMEOUT);
    await new Promise((resolve) => this.server.close(resolve));
    clearTimeout(timer);
  }

  /** Sends the Init until it is answered. Then asks from time to time whether the server still has the rollout. */
  private async follow(rollout: Rollout): Promise<void> {
    const { client } = this.trainer;
    const { rolloutId, attempt } = rollout.request;
    const callback = { ...this.callback, credential: rollout.credential };
    while (!rollout.stop.signal.aborted) {
      let pause = CHECK_INTERVAL;
      try {
        if (rollout.accepted.settled) {
          await client.getRollout({ rolloutId, attempt }, CALL_TIMEOUT);
        } else {
          const answer = await client.init({ ...rollout.request, callback }, CALL_TIMEOUT);
          rollout.accepted.resolve(answer.tools);
        }
      } catch (problem) {
        const error = ConnectError.from(problem);
        if (!isAnswer(error)) pause = 500;
        else if (!rollout.accepted.settled) {
          pause = retryAfter(error) ?? (this.trainer.fail(rollout, error), 0);
        } else if (error.code === Code.NotFound) this.trainer.restart(rollout);
      }
      await sleep(pause, rollout.stop.signal);
    }
  }

  private routes(router: ConnectRouter): void {
    router.service(TrainerService, {
      chat: async (request, context) => {
        this.check(context, request.rolloutId);
        return await this.trainer.answer(request);
      },
      abandonChat: (request, context) => {
        this.check(context, request.rolloutId);
        this.trainer.abandon(request);
        return {};
      },
      complete: (request, context) => {
        this.check(context, request.outcome?.rolloutId);
        return { receipt: this.trainer.record(request.outcome) };
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
    if (owners.length) throw refusal(Code.PermissionDenied, "PERMISSION_DENIED", "the credential is of another rollout");
    throw refusal(Code.Unauthenticated, "UNAUTHENTICATED", "the credential is not of this trainer");
  }
}
