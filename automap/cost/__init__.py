"""What a plan costs: compute, collectives and memory, in seconds and bytes.

A program is folded once to tables of distinct rows, and every point of the space is priced on them:

    shardings  which dimension and which factor each mesh axis splits, by row
    edges      where tensors meet operations
    traffic    the collectives that shardings imply at edges
    kernels    seconds of kernels by the roofline, or by a `profile` of measured ones
    schedule   which collectives run beside which kernels
    memory     bytes over the schedule, and their peak
    evaluate   all of it together: seconds per step and peak bytes of one point

`automap.cost.collectives`  the time of a collective over a group of mesh axes, as a function of
                            its bytes
`automap.cost.edges`        every place where a tensor meets an operation, folded to distinct rows
`automap.cost.evaluate`     the evaluator: seconds per step and peak bytes per device of one point
`automap.cost.hosted`       state that is kept in the host's memory between steps: the room that
                            it takes in the update, and the seconds of the link
`automap.cost.kernels`      kernels folded to distinct rows, and their seconds on one device
`automap.cost.memory`       bytes of one device over the schedule, and their peak
`automap.cost.profile`      measured seconds of kernels on one kind of device, and what they say of
                            kernels that were not measured
`automap.cost.schedule`     the program in the order it runs, and how long a device waits for
                            collectives
`automap.cost.shardings`    which dimension, and which factor, each mesh axis splits: a point
                            applied to rows
`automap.cost.stored_shapes`
                            what is in memory, told apart by what decides its bytes on a device
`automap.cost.tables`       the problem as arrays: everything an evaluation needs, folded to
                            distinct rows
`automap.cost.traffic`      the collectives that shardings imply: what each operation must gather
                            first, and what it must do with its result
"""
