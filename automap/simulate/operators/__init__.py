"""FlexFlow's execution simulator: operators with configurations on devices, full and delta
simulation.
"""
