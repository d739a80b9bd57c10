"""What is read in compiled programs of slices, and what the compiler makes of small ones."""

from dataclasses import replace
import os
import subprocess
import sys

import pytest

from scripts.compare_slices import CASES, RINGS, compiled_algorithm, compiled_kind


FUSED = """
%all-reduce-scatter (input: f32[64,8]) -> f32[8,8] {
  %all-reduce.2 = f32[64,8]{1,0} all-reduce(%input), to_apply=%add
}
  ROOT %fusion = f32[8,8]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter,
  backend_config={"strategy":"StrategyRing","debug":"StrategyRing{colors:1 phases:1"}
"""
GATHER = """
  %all-gather-start = (f32[8], f32[64]) all-gather-start(%param), dimensions={0},
  backend_config={"emitter":"1DAllGatherNonMajorDim","debug":"group_size = 16"}
"""
PERMUTES = "  %collective-permute-start.1 = (f32[8], f32[8]) collective-permute-start(%param)"


@pytest.mark.parametrize(
    ("text", "kind", "algorithm"),
    [
        (FUSED, "reduce-scatter", "StrategyRing (1 colors)"),
        (GATHER, "all-gather", "1DAllGatherNonMajorDim"),
        (PERMUTES, "permutes", ""),
    ],
)
def test_kinds_and_algorithms_are_read_from_a_program(text, kind, algorithm):
    assert compiled_kind(text) == kind
    assert compiled_algorithm(text) == algorithm


@pytest.mark.tpu_compiler
@pytest.mark.slow
def test_the_compiler_scatters_and_rings_as_predicted():
    """In a process of its own: one that has libtpu holds it to its end."""
    cases = [
        replace(case, mebibytes=4)
        for case in CASES
        if case.slice_name in ("v5e:2x4", "v5e:4x4") and case.kind == "reduce-scatter"
    ]
    rings = [case for case in RINGS if case.slice_name == "v5e:2x4"]
    code = (
        "from scripts.compare_slices import Case, RingCase, collective_row, ring_row\n"
        f"print([collective_row(case)[5] for case in {cases}])\n"
        f"print([ring_row(case)[3:] for case in {rings}])\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    kinds, made = answer.stdout.splitlines()
    # All of 2x4, a part of it whose chips are apart, all of 4x4.
    assert kinds == "['reduce-scatter', 'reduce-scatter', 'all-reduce']"
    assert made == "[['none', 'none'], ['ring', 'ring']]"
