"""Shared by the commands: options, --help, and the log on stderr. It imports neither grpc nor pydantic."""
