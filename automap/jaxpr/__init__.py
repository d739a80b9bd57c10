"""A step's jaxpr as data: numbered equations, their names in HLO, constraints put in,
microbatches.

`automap.jaxpr.accumulate`    a step that computes its gradients in a loop over parts of its
                              batch, and updates once
`automap.jaxpr.again`         what is computed again of a block: the equations that make a
                              value, behind what is kept
`automap.jaxpr.blocks`        blocks of a step's forward pass: repeated layers, the bodies of
                              loops, and what lies between
`automap.jaxpr.convolutions`  convolutions written out for each device: halos by ppermute, sums
                              by psum, the convolution local
`automap.jaxpr.fingerprint`   fingerprint of a step's equations: the SHA-256 of a text without
                              addresses, names or traces
`automap.jaxpr.flatten`       a step's jaxpr flattened: numbered equations, with calls inlined
`automap.jaxpr.hosted`        state in the host's memory: where a call's levers keep it, and a
                              step that moves it in and out
`automap.jaxpr.in_parts`      updates of state in the host's memory, part by part: a loop that
                              brings a part of each leaf to the device
`automap.jaxpr.kernels`       equations in the place of a kernel of Pallas: one for the
                              analysis, and one on a plan's mesh
`automap.jaxpr.merged`        several equations in the place of others: those of a stage merged
                              to one, or at once as calls
`automap.jaxpr.microbatch`    steps in microbatches: an unmodified step, traced at two batch
                              sizes, as a loop over parts of its batch
`automap.jaxpr.names`         names of ops for people: what JAX wrote, without the tags that
                              find an op's equation again
`automap.jaxpr.pins`          pins: sharding constraints at the places of a step, checked
                              against it and turned into equations
`automap.jaxpr.reemit`        re-emitting a step: the same equations again, each under its
                              site's name, or with constraints added
`automap.jaxpr.rematerialize`  a step that computes values of its forward pass again in its
                              backward pass, instead of keeping them
`automap.jaxpr.replacements`  equations in the place of those that XLA's partitioner runs
                              badly, or not at all
`automap.jaxpr.sites`         sites: the names of a step's equations, readable in the HLO that
                              the step lowers to
`automap.jaxpr.spread`        scalars that are spread over like tensors which the plan splits
                              differently: `mu / (1 - b1 ** t)` of several kernels
`automap.jaxpr.staged`        a step whose equations stand in the order of stages
"""
