"""The program in the order it runs, and how long a device waits for collectives.

`automap.cost.schedule.order`         kernels as slots, and between which slots each collective has
                                      to be done
`automap.cost.schedule.overlap`       collectives behind computation: how long a device waits for
                                      them
`automap.cost.schedule.placing`       where collectives stand, and what messages are
`automap.cost.schedule.work`          what a device does in a step
"""
