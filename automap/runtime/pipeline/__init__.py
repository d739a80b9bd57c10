"""Running a pipeline plan: a step in microbatches, divided in programs for stages on devices of
their own.

`automap.runtime.pipeline.step`      a pipeline plan's step: called like the step, its state on
                                     the devices of its stages
`automap.runtime.pipeline.transfer`  how a value comes to another stage: the one place that
                                     moves data between devices
"""
