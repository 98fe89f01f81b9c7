export { Trainer, type TrainerOptions } from "./trainer.js";
export type { Chat, Policy, Reply } from "./rollout.js";
