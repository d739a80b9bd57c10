"""Steps with kernels of Pallas on a machine that has no accelerator.

Their kernels run in Pallas' interpreter, and a library that asks for the device, to choose among
its kernels or their blocks, is told one that they are for. With `is_compiled` the kernels stay
those of the accelerator, so that its compiler can be asked ahead of time.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal
from unittest import mock

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend import backend


IS_COMPILED: ContextVar[bool] = ContextVar("IS_COMPILED", default=False)


@dataclass(frozen=True)
class Device:
    """What libraries ask of a device."""

    platform: str
    device_kind: str
    num_cores: int = 1
    core_count: int = 132
    compute_capability: str = "9.0"


DEVICES = {"tpu": Device("tpu", "TPU v5e"), "gpu": Device("gpu", "NVIDIA H100 80GB HBM3")}


def for_device(
    platform: Literal["tpu", "gpu"], *, copies_itself: bool = False
) -> Callable[..., Any]:
    """Decorates a step: traced as on such a device, its kernels in the interpreter.

    Kernels that copy between memories themselves need the interpreter of TPUs, which is slower.
    """
    interpreter = pltpu.InterpretParams() if copies_itself else True

    def decorate(step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with _assumed(DEVICES[platform], interpreter):
                return step(*args, **kwargs)

        return traced

    return decorate


@contextmanager
def _assumed(device: Device, interpreter: Any) -> Iterator[None]:
    made = pl.pallas_call

    def interpreted(*args: Any, **options: Any) -> Any:
        return made(*args, **options | {"interpret": not IS_COMPILED.get() and interpreter})

    with ExitStack() as patches:
        for module, name, value in (
            (pl, "pallas_call", interpreted),
            (backend, "get_default_device", lambda: device),
            (jax, "devices", lambda *_: [device]),
            (pltpu, "get_tpu_info", _tpu_info),
        ):
            patches.enter_context(mock.patch.object(module, name, value))
        yield


def _tpu_info() -> Any:
    return pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V5E, 1)
