"""What a step costs item by item along its forward pass, and what a cut there sends and stores.

`automap.pipeline.profile.points`        a profile coarsen to points: at most as many as a
                                         solver is meant for
`automap.pipeline.profile.profile`       what a step costs item by item: the input of every
                                         pipeline planner (Auto-MAP section 3.4: C, A and W)
`automap.pipeline.profile.stored_bytes`  what a device stores of each parameter: itself, its
                                         gradient's sum, and its part of the optimizer
`automap.pipeline.profile.traffic`       bytes by item: what crosses each cut, and what a stage
                                         holds once, however many of its items use it
"""
