"""Other libraries: agents written for the openai package, and the tools of MCP servers. Each file has its own extra."""
