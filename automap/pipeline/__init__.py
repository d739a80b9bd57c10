"""Pipelines: what a step costs cut after every instruction, what a plan of stages takes, and the
best one.

`automap.pipeline.arrays`     a pipeline problem as arrays: all that the value function, the
                              solvers and the agents read
`automap.pipeline.fabric`     the links between stages on consecutive devices, as seconds per
                              byte
`automap.pipeline.hybrid`     pipelines whose stages are sharded inside: `--space hybrid`
`automap.pipeline.profile`    what a step costs item by item along its forward pass, and what a
                              cut there sends and stores
`automap.pipeline.schedules`  the order in which the stages of a pipeline run their passes, and
                              the step that comes of it
`automap.pipeline.search`     the search for a pipeline: over the number of stages S,
                              microbatches M and schedules, the best partition of each
"""
