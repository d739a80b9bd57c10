"""JSON values of plan files, for tests of any valid plan: numbers, texts, and what a step does in a
second.
"""

from typing import get_args

from hypothesis import strategies as st

from automap.plan.checks import MAX_FLOAT
from automap.plan.rates import ChangeKind


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
count = st.integers(0, 2**63 - 1)
amount = st.floats(0, MAX_FLOAT)
digest = st.text("0123456789abcdef", min_size=64, max_size=64)


def row(**fields):
    return st.fixed_dictionaries(fields)


def rows(**fields):
    return st.lists(row(**fields), max_size=3)


@st.composite
def rates(draw):
    """Records of rates; tokens have an input that they were counted in."""
    per_cause = "rematerialization padding launches products memory".split()
    tokens = draw(count)
    return draw(
        row(
            **dict.fromkeys(("mfu", "model_flops", "peak_flops_per_s"), amount),
            peak_dtype=text,
            samples=count,
            samples_per_second=amount,
            tokens=st.just(tokens),
            tokens_per_second=amount,
            token_input=text if tokens else st.none(),
            lost=row(
                collectives=amount,
                bubbles=amount,
                **dict.fromkeys(per_cause, st.none() | amount),
            ),
            changes=rows(
                kind=st.sampled_from(get_args(ChangeKind)),
                what=text,
                step_seconds=amount,
                peak_bytes=count,
                speedup=amount,
            ),
        )
    )
