"""Planners: a program and a topology -> a plan, one file for each space of plans."""
