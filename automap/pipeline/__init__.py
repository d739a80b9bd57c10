"""Pipelines: what a step costs cut after every instruction, what a plan of stages takes, and the
best one.

`automap.pipeline.fabric`     the links between stages on consecutive devices, as seconds per
                              byte
`automap.pipeline.hybrid`     pipelines whose stages are sharded inside: `--space hybrid`
`automap.pipeline.interleaved`  interleaved pipelines: their stages' seconds and bytes, and the
                                search for their cuts
`automap.pipeline.profile`    what a step costs item by item along its forward pass, and what a
                              cut there sends and stores
`automap.pipeline.schedules`  the schedules of pipelines: a file for each, and an entry in
                              `SCHEDULES`
`automap.pipeline.search`     the search for a pipeline: over the number of stages S,
                              microbatches M and schedules, the best partition of each
`automap.pipeline.simulation`  the simulated step of a plan's pipeline: what each stage does,
                               what it waits for, and when
"""
