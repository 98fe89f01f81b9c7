// Outcomes with whole samples.

import type { Message } from "../gen/osmosis/rollout/v1/message_pb.js";
import type { RolloutOutcome } from "../gen/osmosis/rollout/v1/outcome_pb.js";
import type { Sample as WireSample, Segment as WireSegment } from "../gen/osmosis/rollout/v1/tokens_pb.js";
import type { ChatCache } from "./chats.js";

/** A stretch of a conversation. */
export interface Segment {
  /** All tokens. */
  ids: number[];
  /** For each token: whether the policy sampled it. */
  mask: boolean[];
  /** The mask as run lengths, zeros first. */
  maskRuns: number[];
  /** One for each token whose mask is true. */
  logprobs: number[];
  chats: number[];
}

/** One conversation. Train on its segments if `trainable`, and unless `train` is false. */
export type Sample = Omit<WireSample, "segments"> & { segments: Segment[] };

/** An outcome. What the server left out comes from the chats that this trainer answered. */
export type Outcome = Omit<RolloutOutcome, "samples"> & { samples: Sample[] };

export function assemble(reported: RolloutOutcome, chats: ChatCache): Outcome {
  return { ...reported, samples: reported.samples.map((sample) => whole(sample, chats)) };
}

function whole(sample: WireSample, chats: ChatCache): Sample {
  const prefix: Message[] = chats.get(sample.name, sample.prefixChat)?.messages ?? [];
  const messages = [...prefix, ...sample.messages];
  try {
    return { ...sample, messages, segments: sample.segments.map((segment) => fill(segment, sample.name, chats)) };
  } catch (error) {
    return { ...sample, messages, segments: [], trainable: false, notTrainableReason: (error as Error).message };
  }
}

function fill({ ids, maskRuns, logprobs, chats: numbers }: WireSegment, sample: string, chats: ChatCache): Segment {
  const mask = maskRuns.flatMap((run, index) => Array<boolean>(run).fill(index % 2 === 1));
  if (!ids.length && mask.length) {
    const answered = numbers.map((number) => {
      const chat = chats.get(sample, number);
      if (!chat) throw new Error(`a segment names chat ${number}, which was not answered here`);
      return chat;
    });
    ids = answered.at(-1)?.ids ?? []; // the newest chat has the tokens of all
    logprobs = answered.flatMap((chat) => chat.reply.logprobs ?? []);
  }
  if (ids.length !== mask.length) throw new Error(`a segment has ${ids.length} tokens and a mask for ${mask.length}`);
  return { ids, mask, maskRuns, logprobs, chats: numbers };
}
