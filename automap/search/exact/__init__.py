"""The best plan of a space, with a proof: elimination, prices on memory, and an integer programme
for the rest.

`automap.search.exact.strategy`  `exact`: the best plan with a proof, or the best known with a
                                 proven lower bound
"""
