export { Trainer, type TrainerOptions } from "./trainer.js";
export type { Policy } from "./rollout.js";
export type { Chat, Reply } from "./wire/chats.js";
