"""The plan as data: what was decided, what is predicted and why. Runs nothing, and loading one runs
no code.
"""
