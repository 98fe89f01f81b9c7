export { Trainer } from "./trainer.js";
export type { TrainerOptions } from "./rollouts.js";
export type { Policy } from "./rollout.js";
export type { Chat, Reply } from "./wire/chats.js";
