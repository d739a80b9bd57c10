"""What a plan costs: compute, collectives and memory, in seconds and bytes.

`automap.cost.collectives`   the time of a collective over a group of mesh axes, as a function
                             of its bytes
`automap.cost.compute`       seconds of every kernel on one device: the roofline, and what was
                             measured for like kernels instead of it
`automap.cost.contests`      contests: ops whose factors several classes of one axis could
                             split, and which of them costs least
`automap.cost.edges`         edges: every place where a tensor meets an op, folded to distinct
                             rows
`automap.cost.evaluate`      the evaluator: seconds per step and peak bytes per device of one
                             point
`automap.cost.flows`         flows: what happens at all edges at once, and how it is listed
`automap.cost.halos`         halos: what devices exchange with their neighbours before a window
                             slides over an image that is split
`automap.cost.imposed_rows`  rows whose sharding the user's code decides
                             (`automap.program.imposed`), and what that does to ranks
`automap.cost.kernel_table`  the kernels of a program folded to distinct rows, as the roofline
                             reads them (`automap.cost.compute`)
`automap.cost.kinds`         the collectives that are priced
`automap.cost.layouts`       the orders of a named mesh's axes on a topology, one of each kind
`automap.cost.measured`      measured seconds in the place of the roofline's, for a whole table
                             of kernels at once
`automap.cost.memory`        bytes of one device over the schedule, and their peak
`automap.cost.order`         the program in the order it runs: kernels as slots, and between
                             which slots each collective has to be done
`automap.cost.overlap`       collectives behind computation: how long a device waits for them
`automap.cost.profile`       the profile: measured seconds of kernels on one kind of device,
                             kept in a file
`automap.cost.shardings`     which dimension, and which factor, each mesh axis splits: a point
                             applied to rows
`automap.cost.signatures`    what decides how long a kernel runs: its signature, and how it
                             follows from a sharding
`automap.cost.sums`          sums that backends do not reduce where the plan makes them: added
                             up first, or after a loop's last trip
`automap.cost.tables`        the problem as arrays: everything an evaluation needs, folded to
                             distinct rows
`automap.cost.traffic`       collectives implied by shardings: what each op must gather first,
                             and what it must do with its result
"""
