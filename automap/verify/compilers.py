"""The compilers that can be witnesses, and the machine each compiles for without having it.

    cpu   XLA:CPU on as many fake devices as the plan has; for the plan of any topology
    gpu   XLA:GPU for hosts x GPUs of a known kind (`automap.verify.gpu_targets`)
    tpu   XLA:TPU for a slice, by its name

A new one is an entry of `COMPILERS` and one of `automap.verify.worker`, which runs in the
compiler's process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
import re
from typing import Final

from automap.backends import Backend, backend_for
from automap.choices import CompilerName
from automap.errors import CompilerError
from automap.topology.model import Platform, Topology
from automap.topology.tpu import GENERATIONS
from automap.verify.gpu_targets import gpu_target
from hlo_tools.compiled.estimates import ESTIMATES


MAX_FAKE_DEVICES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """One compiler.

    `platform` is what JAX lowers for; `module` must be importable, `extra` of this package brings
    it; `packages` are those whose versions decide what it answers.
    """

    name: CompilerName
    title: str
    platform: Platform
    module: str
    extra: str | None
    packages: tuple[str, ...]

    @property
    def backend(self) -> Backend:
        """What it does with programs."""
        return backend_for(self.platform)

    def versions(self) -> tuple[tuple[str, str], ...]:
        """(package, version) of all that decides its answers."""
        return tuple((name, _version(name)) for name in self.packages)

    @property
    def installing(self) -> str:
        """How to get it, as an addition to a sentence; "" where it comes with JAX."""
        return "" if self.extra is None else f" (pip install 'jax-automap[{self.extra}]')"

    def check_installed(self) -> None:
        """Raise `CompilerError` with the extra to install if it is missing."""
        if find_spec(self.module) is None:
            raise CompilerError(
                f"{self.title} is not installed; install it with pip install "
                f"'jax-automap[{self.extra}]', or verify with --compiler cpu"
            )


COMPILERS: Final[Mapping[CompilerName, Compiler]] = {
    "cpu": Compiler(
        name="cpu", title="the CPU compiler", platform="cpu", module="jaxlib", extra=None,
        packages=("jax-automap", "jax", "jaxlib"),
    ),
    "gpu": Compiler(
        name="gpu", title="the GPU compiler", platform="cuda", module="jax_cuda12_plugin",
        extra="gpu-compiler",
        packages=("jax-automap", "jax", "jaxlib", "nvidia-cuda-nvcc-cu12", "jax-cuda12-pjrt"),
    ),
    "tpu": Compiler(
        name="tpu", title="the TPU compiler", platform="tpu", module="libtpu", extra="tpu",
        packages=("jax-automap", "jax", "jaxlib", "libtpu"),
    ),
}  # fmt: skip

COMPILER_BY_PLATFORM: Final[Mapping[Platform, CompilerName]] = {
    "cpu": "cpu",
    "cuda": "gpu",
    "tpu": "tpu",
}

_SLICE: Final = re.compile(rf"(?:{'|'.join(GENERATIONS)}):[0-9]+(?:x[0-9]+){{1,2}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerMachine:
    """What is compiled for: `kind` is a TPU slice's name or a GPU's, `grid` is that of JAX's GPU
    topologies, `memory_bytes` are those of a device that programs may use.

    All are empty where the compiler does not ask for them.
    """

    compiler: CompilerName
    device_count: int
    kind: str = ""
    grid: str = ""
    memory_bytes: int = 0


def compile_options(machine: CompilerMachine) -> dict[str, bool | str]:
    """What a compiler is asked besides: the GPU compiler for what it thinks of each kernel."""
    return dict(ESTIMATES) if machine.compiler == "gpu" else {}


def machine_for(name: CompilerName, topology: Topology) -> CompilerMachine:
    """The machine of a topology for a compiler.

    Raises `CompilerError` for a topology of another platform, or one that cannot be described to
    the compiler.
    """
    compiler, count = COMPILERS[name], topology.device_count
    if name == "cpu":
        if count > MAX_FAKE_DEVICES:
            raise CompilerError(
                f"{topology.name} has {count} devices; the CPU compiler takes at most "
                f"{MAX_FAKE_DEVICES} fake ones; verify a plan for fewer, or with its own compiler"
            )
        return CompilerMachine(compiler=name, device_count=count)
    if topology.platform != compiler.platform:
        raise CompilerError(
            f"{compiler.title} cannot compile for {topology.name} ({topology.platform}); allowed: "
            f"{' or '.join(dict.fromkeys((COMPILER_BY_PLATFORM[topology.platform], 'cpu')))}"
        )
    if name == "tpu":
        return _slice(topology)
    return _gpus(topology)


def _slice(topology: Topology) -> CompilerMachine:
    if not _SLICE.fullmatch(topology.name):
        raise CompilerError(
            f"the TPU compiler knows slices by name; got topology {topology.name!r}; plan for one "
            f"of {', '.join(g.example for g in GENERATIONS.values())} and the like"
        )
    return CompilerMachine(compiler="tpu", device_count=topology.device_count, kind=topology.name)


def _gpus(topology: Topology) -> CompilerMachine:
    # Refuses a GPU without a description here, before a process is started for it.
    gpu_target(topology.device.name)
    # Hosts are the outermost level, if there is more than one.
    hosts = next((level.size for level in topology.levels if level.name == "network"), 1)
    count = topology.device_count
    return CompilerMachine(
        compiler="gpu",
        device_count=count,
        kind=topology.device.name,
        grid=f"1x{hosts}x{count // hosts}",  # slices x hosts x GPUs of a host
        memory_bytes=topology.device.memory_bytes,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
