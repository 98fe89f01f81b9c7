"""The chats of a trainer's rollouts. Each chat is sampled once. If it is sent again, it gets the same reply."""
