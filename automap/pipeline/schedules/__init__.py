"""The order in which the stages of a pipeline run their passes, and the step that comes of it.

`automap.pipeline.schedules.recorded`    a pipeline's record -> the step that its planner
                                         simulated
`automap.pipeline.schedules.simulated`   what the simulated step of a pipeline says: what each
                                         stage does, what it waits for, and when
`automap.pipeline.schedules.task_graph`  the task graph of a pipelined step, for the simulator:
                                         the oracle of the value function
"""
