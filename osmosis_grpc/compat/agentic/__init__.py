"""The library of ReAct and tool agents, under the names that it had."""
