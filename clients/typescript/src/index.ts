export { Trainer, type TrainerOptions } from "./trainer.js";
export type { Chat, Policy, Reply } from "./chats.js";
export type { Outcome, Sample, Segment } from "./outcome.js";
