"""Kernels of a program folded to distinct rows, and their seconds on one device.

`automap.cost.kernels.additions`        scatters on GPUs, whose additions meet
`automap.cost.kernels.beside_products`  what products' kernels compute of their results
`automap.cost.kernels.convolutions`     convolutions that a library computes
`automap.cost.kernels.factorizations`   factorizations of matrices by the library of a GPU
`automap.cost.kernels.gathers`          gathers in loops that run beside kernels
`automap.cost.kernels.loop_fills`       zeros that are written before loops
`automap.cost.kernels.merged_products`  products of one operand, which XLA:GPU makes one
`automap.cost.kernels.on_core`          sorts, top-k and sums over windows, within a GPU's cores
`automap.cost.kernels.ragged_products`  what rows of groups take where all groups multiply all rows
`automap.cost.kernels.relaid_copies`    copies to another order, and of inputs that callers keep
`automap.cost.kernels.rings`            products whose partial sums are scattered while they are
                                        made
`automap.cost.kernels.roofline`         seconds of every kernel: the roofline, and what was measured
                                        for like kernels instead of it
`automap.cost.kernels.table`            the kernels folded to distinct rows, as the roofline reads
                                        them
`automap.cost.kernels.unaligned_rows`   products whose rows are no multiple of what a GPU's fast
                                        paths move
"""
