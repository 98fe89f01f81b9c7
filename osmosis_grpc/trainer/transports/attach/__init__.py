"""The attach transport: one stream of frames to each agent server, opened by either side."""
