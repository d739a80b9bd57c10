"""FlexFlow's execution simulator: operators with configurations on devices, full and delta
simulation.

`automap.simulate.operators.configuration`  how an operator runs: FlexFlow's parallelisation
                                            configuration (section 4), and ways to choose one
`automap.simulate.operators.graph`          the operator graph, and its layers: operators that
                                            share a parameter

What simulates them is of the face itself: `Simulator`, a machine with configured operators, their
timeline, and what a change of one configuration does to it.
"""

from automap.simulate.operators.simulator import Method as Method, Simulator as Simulator
