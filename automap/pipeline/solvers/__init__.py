"""The best partition of a pipeline: exactly, or by local search."""
