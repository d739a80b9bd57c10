"""A step as its user wrote it: its calls, the objects of libraries it is given, the shardings in
its code.

`automap.step.arguments`         arguments of a step: those it brings along, those that
                                 options of `jax.jit` mean, and those that are only described
`automap.step.call`              one call of a step: which of its arguments are traced, and
                                 what tracing gave
`automap.step.lost_state`        whether a step trains something and returns none of it: what
                                 it learns would be lost
`automap.step.lru_cache`         what was made for calls, looked up by their signature; of more
                                 than a limit the least recently used is dropped
`automap.step.own_shardings`     the shardings that a step was jitted with: `jax.jit(step,
                                 in_shardings=..., out_shardings=...)`
`automap.step.raised`            what a user's code raised, as one text: the type, the line of
                                 that code, and what it says
`automap.step.rules`             the sharding rules that a user gives for custom calls and
                                 jitted functions
`automap.step.signature`         what makes two calls of a step the same to JAX: trees, shapes,
                                 types, weak types and static values
`automap.step.specs`             specs that a user's code imposes, and their text, which the
                                 target of a marked constraint has
`automap.step.step`              a step as its user wrote it -> what JAX traces of one call: a
                                 function of trees of arrays, and a signature
`automap.step.traced_form`       a step that is given, brings along or returns objects of
                                 libraries, as a function of trees of arrays
`automap.step.user_constraints`  shardings in a user's own step: `with_sharding_constraint`,
                                 and those of jitted functions
`automap.step.user_mesh`         the mesh that shardings in a user's code are on: the names,
                                 and maybe sizes, that a plan's mesh has to have
"""
