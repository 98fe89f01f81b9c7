"""The chats of a trainer's rollouts. Each chat is sampled once. A chat that is sent again gets the same reply."""
