"""What cannot be refined is refused before a search."""

from dataclasses import replace
import math

import pytest

from automap.errors import CompilerError, InputError
from automap.refine.refinement import Refinement, check_can_refine, check_one_compiler_option
from automap.topology import get_topology
from automap.verify.compilers import COMPILERS


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_seconds_out_of_range_are_refused(seconds):
    with pytest.raises(InputError, match="must be a positive number of seconds"):
        Refinement(seconds=seconds)


@pytest.mark.parametrize("name", ["cpu:8", "v6e:2x2"])
def test_a_machine_without_seconds_is_refused_before_the_search(name):
    with pytest.raises(CompilerError, match="no compiler says how long a step takes"):
        check_can_refine(get_topology(name))


def test_a_missing_compiler_is_refused_with_what_to_install(monkeypatch):
    gone = {"gpu": replace(COMPILERS["gpu"], module="no_such_module")}
    monkeypatch.setattr("automap.refine.refinement.COMPILERS", gone)
    with pytest.raises(CompilerError, match=r"jax-automap\[gpu-compiler\]"):
        check_can_refine(get_topology("8xh100"))


def test_a_preset_is_not_refined():
    with pytest.raises(InputError, match="--refine with --preset zero-3: a preset is one plan"):
        check_one_compiler_option(verify=False, refine=60.0, preset="zero-3", space="sharding")
