"""What people read: results as text and tables, and the progress of a search.

`automap.report.applied`       what came of running a plan, as text
`automap.report.console`       where tables are printed: as wide as the terminal, as COLUMNS
                               says, or as suits a pipe
`automap.report.notebook`      plans and comparisons as a notebook shows them
`automap.report.page`          a plan as one HTML page with pictures, which needs no network
`automap.report.progress`      progress of planning on a terminal: what is done, how far, the
                               best plan so far, the time left
`automap.report.simulation`    a simulated step as text, of one program or of a pipeline,
                               beside the plan's prediction
`automap.report.topologies`    machines as text: the catalogue as one table, one machine in
                               full with the source of every number
`automap.report.verification`  a verification as text: the verdict, memory, collectives, where
                               they differ, numerics
"""
