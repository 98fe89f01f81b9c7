"""What the commands share: options, --help, and the log on stderr. Importing it imports neither grpc nor pydantic."""
