"""Which dimension, and which factor, each mesh axis splits: a point applied to rows.

`automap.cost.shardings.factor_choices`  operations whose factors several classes of one axis could
                                         split, and which of them costs least
`automap.cost.shardings.imposed`         rows whose sharding the user's code decides
                                         (`automap.program.imposed`), and what that does to ranks
`automap.cost.shardings.rows`            the rows: distinct shardings of values and of operations
"""

from automap.cost.shardings.split import Shardings, joint_shardings, n_parts, shardings


__all__ = ["Shardings", "joint_shardings", "n_parts", "shardings"]
