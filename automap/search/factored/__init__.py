"""The cost of a plan as a sum of tables over few decisions each: what exact search works on.

`automap.search.factored.barriers`   what is not allowed, as tables of 0 and infinity over the
                                     variables: broken pins, and dimensions split in too many
                                     parts
`automap.search.factored.cells`      cells: what must be priced together, and which decisions
                                     it depends on
`automap.search.factored.codes`      how the decisions of a scope split rows, axis by axis
`automap.search.factored.copied`     the evaluator's tables put together from copies: of each
                                     cell, and each way that its rows may be split, one of its
                                     rows
`automap.search.factored.eliminate`  elimination: the minimum of a sum of tables over all
                                     choices, one variable after the other
`automap.search.factored.model`      the cost of every plan on one mesh as a sum of tables over
                                     few decisions each
`automap.search.factored.pricing`    cells on one mesh: in which ways decisions can split their
                                     rows, and what each way costs
`automap.search.factored.stored`     along which dimensions leaves are stored, for every choice
                                     of their level and of their classes' axes
`automap.search.factored.variables`  the decisions of a space as variables with finite domains,
                                     so that a plan is one index per variable
"""
