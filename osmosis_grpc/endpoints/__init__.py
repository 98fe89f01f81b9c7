"""A base URL for each rollout: an unmodified OpenAI or Anthropic program gets its replies from the trainer."""
