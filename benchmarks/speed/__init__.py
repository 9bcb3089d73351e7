"""Task files in the public convention under every arm that a user has: `python -m benchmarks.speed`."""
