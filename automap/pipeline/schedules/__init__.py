"""The order in which the stages of a pipeline run their passes, and the step that comes of it."""
