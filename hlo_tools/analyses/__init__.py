"""What follows from a graph alone, whatever machine it will run on; each module is one analysis.

phases, roles        forward, backward and update; what each input is for
linkage, regions     dimensions that one decision forces together, everywhere or around weights
conflicts, folding   where groups compete; groups that equal layers share
storage              dimensions along which a parameter or its optimizer state can be kept split
interleaved          the rules as they would be if fused dimensions were stored interleaved
kernels, liveness    which values XLA writes to memory, and from when to when they are there
narrow, invariants   values that are kept rounded; values that loops only carry along
constants, flops     small constants that are known; operations of one op
batches              ops that have one rule, together
"""
