"""Running a pipeline plan: a step in microbatches, divided in programs for stages on devices of
their own.
"""
