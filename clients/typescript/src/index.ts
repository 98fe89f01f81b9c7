export { Trainer, type TrainerOptions } from "./trainer.js";
export type { Chat, Outcome, Policy, Reply, Sample, Segment } from "./rollout.js";
