"""Execution simulated task by task: full and delta simulation of FlexFlow, plans, traces."""
