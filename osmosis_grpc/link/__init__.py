"""What both ends of a connection share: channel options, interceptors, the target policy."""
