"""The attach transport: one stream of frames to each agent server. Either side can open it."""
