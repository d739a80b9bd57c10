"""What follows from a graph alone, whatever machine it will run on; each module is one analysis.

`hlo_tools.analyses.accesses`     what a kernel is: an op and the memory that it touches, and what
                                  it reads for what is not in memory
`hlo_tools.analyses.batches`      ops that have one rule, together: a large graph has few
                                  different rules, so work is done per rule
`hlo_tools.analyses.column_kernels`  sums over rows, and what XLA:GPU makes one kernel with them
`hlo_tools.analyses.conflicts`    conflicts: places where groups compete, as explicit objects
`hlo_tools.analyses.factorizations`  factorizations of matrices: columns that wait for each other
`hlo_tools.analyses.flops`        FLOPs of an op, from its rule and shapes; bytes are those of
                                  its values (`Value.n_bytes`)
`hlo_tools.analyses.folding`      folding: groups that play the same part in repeated layers
                                  share one decision
`hlo_tools.analyses.fuser`        what a backend's fusion passes do
`hlo_tools.analyses.grouped`      grouped dimensions: a dimension of two factors, both of which
                                  axes may split (key heads, and the query heads of each)
`hlo_tools.analyses.interleaved`  fused dimensions: several equal parts side by side in one
                                  dimension (q, k, v; the gates of an LSTM)
`hlo_tools.analyses.invariants`   how often a value changes in a step, and the elements of small
                                  integer arrays that no input changes
`hlo_tools.analyses.kernels`      kernels: which values XLA writes to memory, and what each
                                  kernel reads
`hlo_tools.analyses.linkage`      linkage groups: the (value, dimension) nodes that one
                                  decision forces together
`hlo_tools.analyses.host_memory`  what is in the host's memory, and what brings it there and back
`hlo_tools.analyses.liveness`     when each stored value comes into memory and when it leaves
`hlo_tools.analyses.matrix_vector`  products of vectors, which a backend sums as reductions
`hlo_tools.analyses.orders`       in which order XLA:GPU lays dimensions of arrays
`hlo_tools.analyses.passes`       what kernels that are fused read once
`hlo_tools.analyses.phases`       phases: which ops are the forward pass, which the backward
                                  pass, which the update
`hlo_tools.analyses.product_kernels`  what the kernel of a product computes besides it
`hlo_tools.analyses.rearranged`   what kernels of their own bring to other places
`hlo_tools.analyses.regions`      regions: the part of a linkage group around its weights,
                                  where the group can be split and nowhere else
`hlo_tools.analyses.roles`        roles of the step's inputs: parameter, optimizer state, other
                                  state, batch, rng key, constant
`hlo_tools.analyses.storage`      storage groups: the dimensions along which a leaf can be kept
                                  sharded without its computation being so
`hlo_tools.analyses.strided_tiles`  which tiles hold the same row of several matrices
`hlo_tools.analyses.widths`       which float32 values are kept as bfloat16
"""
