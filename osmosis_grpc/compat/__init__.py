"""The names and the behaviour of two older systems: the Osmosis SDK and the Agentic Rollout Library."""
