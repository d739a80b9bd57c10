"""Running plans: the step under its shardings, constraints, stages and schedules, on one process or
several.

`automap.runtime.initialization`  state that is created sharded: the initializer runs as
                                  one program whose outputs are split
`automap.runtime.meshes`          a plan's mesh on devices: real, fake, or of a machine that is
                                  not there
`automap.runtime.pipeline`        running a pipeline plan: a step in microbatches, divided in
                                  programs for stages on devices of their own
`automap.runtime.placement`       running a placement plan: operators' tasks as programs on devices
                                  of their own, and the seconds of such a step
`automap.runtime.planned_calls`   the calls of a step under a plan: which calls the plan is
                                  for, and the program of each kind
`automap.runtime.run`             running a plan: shardings on inputs and outputs, constraints
                                  inside, on real or fake devices
`automap.runtime.transfer`        how a value comes to other devices, also of other processes: the
                                  one place that moves data between them
"""
