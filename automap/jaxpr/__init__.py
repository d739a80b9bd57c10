"""A step's jaxpr as data: numbered equations, their names in HLO, constraints put in,
microbatches.
"""
