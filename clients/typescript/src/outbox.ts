// The frames that one stream sends: its hello, then batches, and heartbeats after silence.

import { setTimeout as sleep } from "node:timers/promises";
import { create, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import * as v1 from "./v1.js";

export type Frame = NonNullable<MessageInitShape<typeof v1.TrainerFrameSchema>["frame"]>;

const MAX_FRAMES = 4096; // of one stream message
const MAX_BYTES = 1 << 20;

export class Outbox {
  private waiting: v1.TrainerFrame[] = []; // the windows of both sides bound it
  private wake = new AbortController();
  private closed = false;
  private interval = 60_000; // of heartbeats: none before the hello of the server

  /** Sends a frame. It is lost if the stream ends: the next stream begins with what was not answered. */
  send(frame: Frame): void {
    this.waiting.push(create(v1.TrainerFrameSchema, { frame }));
    this.wake.abort();
  }

  setInterval(milliseconds: number): void {
    this.interval = milliseconds;
    this.wake.abort();
  }

  close(): void {
    this.closed = true;
    this.wake.abort();
  }

  /** Yields the hello, then the frames up to Goodbye, and a heartbeat after an interval without a frame. */
  async *messages(hello: v1.TrainerHello): AsyncGenerator<v1.AttachRequest> {
    yield create(v1.AttachRequestSchema, { frames: [{ frame: { case: "hello", value: hello } }] });
    while (!this.closed) {
      if (!this.waiting.length) {
        this.wake = new AbortController();
        const silent = await sleep(this.interval, true, { signal: this.wake.signal }).catch(() => false);
        if (silent) this.send({ case: "heartbeat", value: {} });
        continue;
      }
      let [count, bytes] = [0, 0];
      for (const frame of this.waiting.slice(0, MAX_FRAMES)) {
        bytes += toBinary(v1.TrainerFrameSchema, frame).length;
        if (count > 0 && bytes > MAX_BYTES) break; // a larger frame goes alone
        count++;
      }
      const frames = this.waiting.splice(0, count);
      yield create(v1.AttachRequestSchema, { frames });
      if (frames.at(-1)?.frame.case === "goodbye") return;
    }
  }
}
