"""Pipelines: what a step costs cut after every instruction, what a plan of stages takes, and the
best one.
"""
