"""What compilers think of each instruction of a program that they compiled, by its name.

libtpu writes on each fusion, on each op that runs by itself, and on each copy that others wait for
(into another order of dimensions, mostly) how many cycles it takes it to be, the greatest number
where it cannot say; collectives and asynchronous copies carry none      -> in: `read_cycles`

    {"window_config": {"estimated_cycles": "45363", ...}, ...}

XLA:GPU writes on each instruction that runs, if it is asked by the compiler option `ESTIMATES`,
                                                                         -> in: `read_estimates`
    {"fusion_backend_config": {"kind": "__triton_gemm", ...},
     "reification_cost": [{"name": "sol", "exec_time_us": 51.2, ...}, {"exec_time_us": 867.7}, ...]}

and, on a call of a matrix library,

    {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"], ...}}}

One entry of the costs is for each of its models that has an opinion:

    ""                              the oldest: a roofline that knows no matrix units
    "sol"                           the speed of light: a roofline, and measured tables of products
                                    and of collectives where they have the shape
    "indexing-cost-model"           what the tiles of a Triton kernel read and compute
    "experimental-gemm-cost-model"  the same for Triton's products

Which one to believe is for the reader to say.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import json
from math import isfinite
from types import MappingProxyType
from typing import Any, Final

from hlo_tools.module import DotDims
from hlo_tools.read.messages import text
from hlo_tools.read.proto import module_message


ESTIMATES: Final[Mapping[str, bool]] = MappingProxyType({"xla_gpu_collect_cost_model_stats": True})
"""The compiler option without which a program has no estimates."""


@dataclass(frozen=True, slots=True)
class GpuEstimate:
    """`kind` is how a fusion is compiled ("" for what is none), `seconds` one run by each model,
    `dot` the product that a matrix library is called for, None for other instructions.
    """

    kind: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    dot: DotDims | None = None


def read_estimates(data: bytes) -> Mapping[str, GpuEstimate]:
    """The estimates of a serialized HloModuleProto by the names of instructions, which differ.

    Raises `HloError` for a malformed proto; a config that is no such JSON has no estimate.
    """
    return {
        text(instruction.name): estimate
        for computation in module_message(data).computations
        for instruction in computation.instructions
        if instruction.backend_config
        and (estimate := _estimate(instruction.backend_config)) is not None
    }


def _estimate(backend_config: bytes) -> GpuEstimate | None:
    try:
        config: Any = json.loads(backend_config)
        costs = config.get("reification_cost", [])
        seconds = {str(c.get("name", "")): float(c["exec_time_us"]) * 1e-6 for c in costs if c}
        kind = str(config.get("fusion_backend_config", {}).get("kind", ""))
        dot = _dot(config.get("gemm_backend_config", {}).get("dot_dimension_numbers"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    known = {name: value for name, value in seconds.items() if isfinite(value) and value >= 0}
    return GpuEstimate(kind, known, dot)


def _dot(numbers: Any) -> DotDims | None:
    """The dimensions of a product; 64-bit numbers are texts in the JSON of a proto."""
    if numbers is None:
        return None
    names = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
    return DotDims(*(tuple(int(d) for d in numbers.get(f"{n}_dimensions", ())) for n in names))


_UNKNOWN_CYCLES: Final = 2**62
"""As many are centuries: libtpu says 2^63 - 1 of softmax over 8,192 numbers as a sum over windows
(0.0.51, 2026-11), in a fusion that runs like any other.
"""


def read_cycles(data: bytes) -> Mapping[str, int | None]:
    """The cycles of one run of each instruction that has an estimate, by its name; None where the
    compiler cannot say.

    Raises `HloError` for a malformed proto.
    """
    return dict(_cycles_by_name(data))


def _cycles_by_name(data: bytes) -> Iterator[tuple[str, int | None]]:
    for computation in module_message(data).computations:
        for instruction in computation.instructions:
            if b"estimated_cycles" in instruction.backend_config:
                cycles = _cycles(instruction.backend_config)
                if cycles is not None:
                    yield text(instruction.name), cycles if cycles < _UNKNOWN_CYCLES else None


def _cycles(backend_config: bytes) -> int | None:
    try:
        config: Any = json.loads(backend_config)
        cycles = int(config["window_config"]["estimated_cycles"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return cycles if cycles >= 0 else None
