"""Running a pipeline plan: a step in microbatches, divided in programs for stages on devices of
their own.

`automap.runtime.pipeline.assembly`  all programs of a step, as functions on the stages' devices or
                                     on abstract meshes
`automap.runtime.pipeline.compiled`  the functions, and how a value of a microbatch travels
`automap.runtime.pipeline.divide`    the passes of the stages
`automap.runtime.pipeline.places`    the devices of a stage, and how values are split over them
`automap.runtime.pipeline.programs`  what each program computes, reads and hands on
`automap.runtime.pipeline.step`      a pipeline plan's step: called like the step, its state on
                                     the devices of its stages
`automap.runtime.pipeline.update`    what is computed once after a loop, mostly the optimizer
"""
