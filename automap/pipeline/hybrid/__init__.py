"""Pipelines whose stages are sharded inside: `--space hybrid`."""
