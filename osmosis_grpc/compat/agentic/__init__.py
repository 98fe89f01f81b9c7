"""The Agentic Rollout Library: its ReAct and tool agents, under their old names."""
