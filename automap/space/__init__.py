"""What can be decided about a program: points, presets, pins.

`automap.space.batches`       all classes of the batch: a step may have several that share no
                              dimension
`automap.space.leaves`        leaf classes: parameters that share one storage decision, with
                              the storage classes it turns on
`automap.space.pins`          pins: inputs whose sharding the user decides, as `in_shardings`
                              of the step would
`automap.space.point`         a point of the space: a mesh shape and, for each mesh axis, an
                              ordered list of classes
`automap.space.point_record`  the point that a plan stands for, to and from its record
                              (`automap.plan.point`)
`automap.space.presets`       points that people write by hand: presets, and what the step's own
                              code imposes
`automap.space.space`         the space of one problem: what may be decided, which points are
                              valid, and the classes that a point splits
"""
