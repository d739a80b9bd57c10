"""Running plans: the step under its shardings, constraints, stages and schedules, on one process or
several.
"""
