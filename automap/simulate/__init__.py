"""Execution simulated task by task: full and delta simulation of FlexFlow, plans, traces.

`automap.simulate.heap`        a binary heap of tasks ordered by (seconds, id), compiled
`automap.simulate.operators`   FlexFlow's execution simulator: operators with configurations on
                               devices, full and delta simulation
`automap.simulate.placed`      the simulated step of a plan's placement, as the plan has it
`automap.simulate.recorded`    the program of one device as a plan keeps it
                               (`automap.plan.program`), and back; its tasks as events of a trace
`automap.simulate.simulation`  the record of a simulated step: how long, how busy, which
                               collectives a device waits for, the longest of everything
`automap.simulate.tasks`       a task graph as arrays, and its timeline
`automap.simulate.trace`       a timeline as a trace: JSON that Perfetto
                               (https://ui.perfetto.dev) and chrome://tracing open
"""
