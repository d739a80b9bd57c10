"""The program in the order it runs, and how long a device waits for collectives.

`automap.cost.schedule.merging`       which collectives are one message, and what XLA's scheduler
                                      takes messages to be
`automap.cost.schedule.order`         kernels as slots, and between which slots each collective has
                                      to be done
`automap.cost.schedule.overlap`       collectives behind computation: how long a device waits for
                                      them
`automap.cost.schedule.work`          what a device does in a step
"""
