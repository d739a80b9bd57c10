"""The pretrained agent of the sharding space: it goes to a good plan in few evaluations, with
weights that come with the package.

`automap.search.agent.options`  what the agent sees: moves and meshes as numbers without units
`automap.search.agent.play`     how it plays: turns, roll-outs, beams, and the strategy
"""
