"""What the commands share: their options, --help, the log on stderr. Light: imports neither grpc nor pydantic."""
