"""Automatic parallelization planner for unmodified single-device JAX train steps."""
