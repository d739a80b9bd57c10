"""`automap plan --refine`: the compiler in the loop of a search.

`automap.refine.loop`        search, compile, correct, search again; the best plan that was compiled
`automap.refine.refinement`  for how long, and where what compilers say is kept
"""
