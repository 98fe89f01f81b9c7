"""What every HTTP server of the package shares: bounded requests, bounded JSON, guarded access."""
