"""Applying a plan: replaying a step's equations, with shardings, stages and schedules."""
