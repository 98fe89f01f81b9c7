"""What a trainer knows of its rollouts' chats: each is sampled once, and answered again as it was."""
