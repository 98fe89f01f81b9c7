"""Programs that measure. Each runs as `python -m benchmarks.NAME` and prints its parameters with its figures."""
