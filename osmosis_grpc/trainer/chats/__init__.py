"""The chats of a trainer's rollouts. Each is sampled once; the same chat again gets the same reply."""
