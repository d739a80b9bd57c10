"""Pipelines whose stages are sharded inside: `--space hybrid`.

`automap.pipeline.hybrid.inner_plans`  the ways in which a stage may be sharded inside
`automap.pipeline.hybrid.membership`   which stages an op and a leaf of the step belong to
`automap.pipeline.hybrid.pricing`      a stage's way of running on its own devices, priced item
                                       by item
`automap.pipeline.hybrid.search`       the search for a pipeline with sharded stages: S, M,
                                       schedule, cuts, devices and inner plans together
"""
