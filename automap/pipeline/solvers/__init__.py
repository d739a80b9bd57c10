"""The best partition of a pipeline: exactly, or by local search.

`automap.pipeline.solvers.bounds`         seconds that no partition is below, from the least work
                                          that is left
`automap.pipeline.solvers.exact`          the optimum of V for S stages, by a dynamic programme
                                          over tails
`automap.pipeline.solvers.local`          partitions without a proof: even splits, cuts at
                                          servers, and local search from several starts
`automap.pipeline.solvers.stage_options`  stages of several kinds as arrays: what the exact
                                          solver takes, and the least memory of any partition
"""
