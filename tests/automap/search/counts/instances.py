"""Random decisions with contradictions, links and implications, and their plans by brute force."""

from itertools import product

from hypothesis import strategies as st
import numpy as np

from automap.search.counts.choices import Choices


def random_choices(seed: int, n: int, n_groups: int | None = None, density: float = 0.3) -> Choices:
    """Decisions about `n_groups` groups (as many as decisions, if not given), heavy ones first."""
    source = np.random.default_rng(seed)
    group = np.arange(n) if n_groups is None else source.integers(n_groups, size=n)
    size = group.max() + 1
    meets = np.triu(source.random((size, size)) < density, 1)
    meets = meets | meets.T
    # What is linked is one group: all of it is decided by one of its decisions, none implied.
    implies = meets if n_groups is None and source.random() < 0.5 else np.zeros_like(meets)
    implies = implies & (source.random((size, size)) < 0.5)
    linked = group[:, None] == group[None, :]
    np.fill_diagonal(linked, False)
    weights = np.sort(source.integers(1, 9, size=n))[::-1].copy()
    return Choices(
        classes=tuple(group.tolist()),
        dimensions=tuple((f"{i}",) * weight for i, weight in enumerate(weights.tolist())),
        weights=weights,
        allowed=(source.random(size) < 0.85)[group],
        conflicts=meets[np.ix_(group, group)],
        linked=linked,
        implied=implies[np.ix_(group, group)],
    )


CHOICES = st.builds(
    random_choices,
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 8)),
)


def plans(choices: Choices) -> list[np.ndarray]:
    """Every plan without a contradiction."""
    every = (np.array(bits) for bits in product([False, True], repeat=len(choices)))
    return [split for split in every if choices.holds(split)]
