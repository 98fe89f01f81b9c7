"""What both ends of a connection share: channel options, credentials, handlers, frame streams, the target policy."""
