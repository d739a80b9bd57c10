"""XLA's text of shardings: what JAX itself writes, and forms that only XLA writes."""

from itertools import permutations
import re

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
import pytest

from automap.errors import PlanError
from automap.jax_compat import lowered_for_gspmd
from scripts.auto_shardings import read_spec


AXES = (("a", 2), ("b", 3), ("c", 2))
ENTRIES = [
    None,
    *[tuple(names) for count in (1, 2, 3) for names in permutations("abc", count)],
]
SPECS = [
    (left, right) for left in ENTRIES for right in ENTRIES if not {*(left or ())} & {*(right or ())}
]


def _texts_of_jax(specs):
    """The annotations of inputs with these shardings."""
    mesh = AbstractMesh(
        tuple(size for _, size in AXES),
        tuple(name for name, _ in AXES),
        axis_types=(AxisType.Auto,) * len(AXES),
    )
    inputs = [
        jax.ShapeDtypeStruct(
            (12, 24), "float32", sharding=NamedSharding(mesh, PartitionSpec(*spec))
        )
        for spec in specs
    ]
    text = lowered_for_gspmd(jax.jit(lambda *x: x).trace(*inputs), "tpu").as_text()
    main = text[text.index("@main(") : text.index("->", text.index("@main(") + 4)]
    arguments = re.findall(r"%arg\d+: tensor<[^>]*> \{([^%]*)\}", text[text.index("@main(") :])
    assert len(arguments) == len(specs), main[:200]
    return [re.findall(r'mhlo.sharding = "(\{.*?\})"', a)[0] for a in arguments]


def test_what_jax_writes_is_read_back():
    for spec, text in zip(SPECS, _texts_of_jax(SPECS), strict=True):
        assert read_spec(text, 2, AXES) == spec, text


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("{replicated}", (None, None)),
        ("{devices=[8,1]<=[8]}", (("a", "b"), None)),
        ("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}", (("b",), None)),
        ("{devices=[1,4,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", (None, ("a",))),
        ("{devices=[2,4]<=[8]}", None),  # the axis of 4 is in two: no axes of this mesh do it
    ],
)
def test_forms_that_xla_writes(text, spec):
    assert read_spec(text, 2, (("a", 4), ("b", 2))) == spec


@pytest.mark.parametrize("text", ["{maximal device=0}", "", "{devices=[2,2]<=[4]}", "{manual}"])
def test_what_is_no_split_of_these_devices_is_refused(text):
    with pytest.raises(PlanError, match="sharding"):
        read_spec(text, 2, (("a", 4), ("b", 2)))
