"""The common part of the package's HTTP servers: bounded requests, bounded JSON, guarded access."""
