"""The model zoo: full train steps with published configurations, as tests, scripts and examples use them.

Each target, such as `models.t5:t5_11b`, returns `(step, args)`: a jitted train step and its abstract
arguments. Nothing is allocated, so the 11B model is as cheap to ask for as the tiny one.
"""
