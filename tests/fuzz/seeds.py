"""Valid inputs of every format, made by the code that writes them; what is mutated begins here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
import tempfile
import tomllib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from automap.action_network import shapes
from automap.api.planning import plan
from automap.cost.profile import KernelProfile, Transfer
from automap.cost.profile.prices import CompiledDot, KernelPrices
from automap.cost.profile.record import FORMAT as PROFILE_FORMAT
from automap.cost.profile.signatures import (
    ConvolutionSignature,
    DotSignature,
    Spatial,
    StreamSignature,
)
from automap.pipeline.agent.network import FORMAT as WEIGHTS_FORMAT
from automap.plan.codec import encode
from automap.refine.attribution import FORMAT as PRICES_FORMAT, VERSION as PRICES_VERSION
from automap.topology import get_topology
from automap.topology.toml_file import __doc__ as toml_doc
from automap.verify.messages import Answer, MemoryBytes, ProgramAnswer
from automap.verify.witness import CompiledRecord, Witness
from hlo_tools.jax_compat import portable_stablehlo
from rl.checkpoint import Checkpoint, save
from tests.steps import mlp


@dataclass(frozen=True)
class Step:
    """A function and its abstract arguments; and how many devices its plans are for."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    n_devices: int = 4


def _array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _loops(w: jax.Array, x: jax.Array) -> Any:
    def body(carry: jax.Array, row: jax.Array) -> Any:
        carry = jax.lax.cond(row.sum() > 0, lambda c: jnp.tanh(c @ w), lambda c: c, carry)
        return carry, jnp.sort(carry, axis=-1)

    last, rows = jax.lax.scan(body, x, jnp.ones((5, 8)))
    return jax.lax.fori_loop(0, 3, lambda i, v: v + i, last), rows


def _tables(table: jax.Array, ids: jax.Array, rows: jax.Array) -> Any:
    found = table[ids]
    put = table.at[ids].add(rows)
    return jax.lax.top_k(found, 2), put, jnp.argmax(found, axis=1), jnp.cumsum(rows, axis=0)


def _images(image: jax.Array, kernel: jax.Array) -> jax.Array:
    made = jax.lax.conv_general_dilated(
        image, kernel, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    pooled = jax.lax.reduce_window(made, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.pad(pooled, ((0, 0), (1, 1), (0, 0), (0, 0)))


STEPS = (
    Step(*mlp(batch=8, width=8, hidden=16)),
    Step(_loops, (_array(8, 8), _array(4, 8))),
    Step(_tables, (_array(16, 4), _array(3, dtype="int32"), _array(3, 4))),
    Step(_images, (_array(8, 9, 9, 4), _array(3, 3, 4, 8))),
    Step(lambda key, x: jax.random.normal(jax.random.wrap_key_data(key), x.shape) * x,
         (_array(2, dtype="uint32"), _array(4, 4))),
)  # fmt: skip


def _lowered(step: Step) -> jax.stages.Lowered:
    return jax.jit(step.function, keep_unused=True).lower(*step.args)


@cache
def protos() -> tuple[bytes, ...]:
    """Serialized HloModuleProtos."""
    return tuple(
        _lowered(step).compiler_ir("hlo").as_serialized_hlo_module_proto() for step in STEPS
    )


@cache
def hlo_texts() -> tuple[str, ...]:
    """HLO text."""
    return tuple(_lowered(step).compiler_ir("hlo").as_hlo_text() for step in STEPS)


@cache
def stablehlo_texts() -> tuple[str, ...]:
    """StableHLO text."""
    return tuple(str(_lowered(step).compiler_ir("stablehlo")) for step in STEPS)


@cache
def stablehlo_bytecodes() -> tuple[bytes, ...]:
    """StableHLO bytecode."""
    return tuple(
        portable_stablehlo(_lowered(step).compiler_ir("stablehlo"), "1.8.0") for step in STEPS
    )


def _layers(weights: jax.Array, batch: jax.Array) -> jax.Array:
    """Gradient descent through layers in a loop, which keeps values for its backward pass."""

    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(jnp.sin(x @ weight) @ weight.T), None

    def loss(weights: jax.Array) -> jax.Array:
        return jnp.square(jax.lax.scan(layer, batch, weights)[0]).mean()

    return weights - 0.1 * jax.grad(loss)(weights)


def _branches(image: jax.Array, kernels: jax.Array) -> jax.Array:
    """Convolutions of one image, which may run at once or be merged."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return jnp.concatenate(
        [
            jax.lax.conv_general_dilated(image, k, (1, 1), "SAME", dimension_numbers=numbers)
            for k in kernels
        ],
        axis=-1,
    )


LAYERS = Step(_layers, (_array(4, 64, 64), _array(512, 64)))
BRANCHES = Step(_branches, (_array(1, 32, 32, 32), _array(3, 3, 3, 32, 32)), n_devices=1)
_SHARDED: Mapping[str, Any] = {"topology": "4xh100", "strategy": "greedy", "budget": 5.0}
PLANNED: tuple[tuple[Step, Mapping[str, Any]], ...] = (
    (STEPS[0], {"topology": "4xh100", "preset": "zero-3"}),
    (STEPS[0], _SHARDED),
    (STEPS[0], {"topology": "4xh100", "space": "pipeline", "stages": 2, "budget": 5.0}),
    (STEPS[0], {"topology": "4xh100", "space": "hybrid", "stages": 2, "budget": 5.0}),
    (LAYERS, {**_SHARDED, "levers": "remat", "memory_limit": 0.0005}),
    (LAYERS, {**_SHARDED, "levers": "accumulate", "memory_limit": 0.0007}),
    (LAYERS, {**_SHARDED, "levers": "offload", "memory_limit": 0.0005}),
    (STEPS[0], {"topology": "4xh100", "space": "placement", "strategy": "heft"}),
    (STEPS[0], {"topology": "4xh100", "space": "placement", "strategy": "mcmc", "budget": 2.0}),
    (BRANCHES, {"topology": "1xv100", "space": "streams"}),
)


@cache
def plans() -> tuple[Mapping[str, Any], ...]:
    """JSON values of plan files: of shardings, pipelines, levers, placements and streams."""
    return tuple(plan(step.function, step.args, **options).to_json() for step, options in PLANNED)


@cache
def topologies() -> tuple[Mapping[str, Any], ...]:
    """Tables of topology files: regular machines, and a graph."""
    desk = "\n".join(line[4:] for line in str(toml_doc).splitlines() if line.startswith("  |"))
    regular = (get_topology(name).to_dict() for name in ("4xh100", "v5e:2x2", "cpu:4"))
    return (*regular, tomllib.loads(desk))


@cache
def profiles() -> tuple[Mapping[str, Any], ...]:
    """JSON values of a profile with a row of every kind."""
    around = Spatial(
        read=9, made=9, taps=3, stride=1, padding_low=1, window_dilation=1, base_dilation=1
    )
    known = KernelProfile(
        device="cpu-4", device_kind="cpu", jax_version=jax.__version__
    ).with_times(
        [
            (DotSignature(dtype="f32", batch=1, m=8, n=16, k=8), 1e-6),
            (
                ConvolutionSignature(
                    dtype="f32",
                    batch=8,
                    in_features=4,
                    out_features=8,
                    feature_groups=1,
                    batch_groups=1,
                    spatial=(around,),
                ),
                1e-6,
            ),
            (StreamSignature(family="elementwise", elements="wide float", n_bytes=4096), 1e-6),
            (Transfer(kind="all-reduce", sizes=(4,), axis=0, n_bytes=4096), 1e-6),
        ]
    )
    return ({"format": PROFILE_FORMAT, "version": 1, **encode(known)},)


@cache
def witnesses() -> tuple[Mapping[str, Any], ...]:
    """JSON values of what a compiler said."""
    used = MemoryBytes(arguments=10, outputs=9, aliased=9, temporaries=1, generated_code=5)
    moved = CompiledRecord(
        kind="all-reduce", axes=("data",), bytes=64, count=2, site="12", op_name="jvp()"
    )
    said = Witness(
        compiler="tpu",
        versions=(("jax", "0.10.2"),),
        topology="v5e:2x4",
        planned_sha256="0" * 64,
        fits=True,
        memory_limit_bytes=16 * 10**9,
        peak_bytes=11,
        memory=used,
        refusal="",
        collectives=(moved,),
        compile_seconds=1.5,
        program="input.pb.gz",
    )
    return (said.to_json(),)


@cache
def answers() -> tuple[Mapping[str, Any], ...]:
    """JSON values of what a compiler answered of a pipeline's programs."""
    used = MemoryBytes(arguments=10, outputs=9, aliased=9, temporaries=1, generated_code=5)
    first = ProgramAnswer(
        outcome="done",
        message="",
        same_as=None,
        memory=used,
        input_bytes=(4, 6),
        output_bytes=(9,),
    )
    programs = (first, replace(first, same_as=0, memory=None))
    return (
        encode(
            Answer(
                outcome="done", message="", seconds=1.5, memory=None, leaves=(), programs=programs
            )
        ),
    )


@cache
def kernel_prices() -> tuple[Mapping[str, Any], ...]:
    """JSON values of what compilers said of kernels."""
    dot = DotSignature(dtype="bf16", batch=1, m=8, n=16, k=8)
    row = CompiledDot(signature=dot, seconds=2e-6, predicted_seconds=1e-6)
    prices = KernelPrices(dots=(row,), other_ratio=1.25)
    return ({"format": PRICES_FORMAT, "version": PRICES_VERSION, **encode(prices)},)


MACHINE_PRICES = ('currency = "EUR"\n[per_device_hour]\nh100 = 2.5\n"v5e:2x4" = 1\na100 = 1e0\n',)
DEGREES = (
    "ici_fsdp_parallelism: -1\nici_tensor_parallelism: 4\ndcn_data_parallelism: 2\n"
    "num_pipeline_microbatches: 8\nremat_policy: 'full'\n",
    "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 \\\n"
    "  --use-distributed-optimizer --recompute-granularity full --micro-batch-size 1\n",
)


@cache
def weights() -> tuple[bytes, ...]:
    """Weights of a small agent."""
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes(WEIGHTS_FORMAT, 4).items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights"
        save_file(arrays, path, metadata={"format": WEIGHTS_FORMAT.name})
        return (path.read_bytes(),)


@cache
def checkpoints() -> tuple[bytes, ...]:
    """Checkpoints of a run."""
    arrays = {"agent/w": np.ones((2, 3), np.float32), "replay/n": np.arange(4)}
    scalars = {"shape": {"actions": 3}, "config": {"seed": 0, "rates": [0.1, 0.2]}, "source": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save(path, Checkpoint(arrays, scalars))
        return (path.read_bytes(),)
