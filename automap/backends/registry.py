"""The backends that plans are made for, by the platform that JAX lowers for."""

from collections.abc import Mapping
from typing import Final

from automap.backends.base import Backend
from automap.backends.xla_cpu import XLA_CPU
from automap.backends.xla_gpu import XLA_GPU
from automap.backends.xla_tpu import XLA_TPU
from automap.errors import InputError
from automap.topology.model import Platform


BACKENDS: Final[Mapping[Platform, Backend]] = {
    backend.platform: backend for backend in (XLA_TPU, XLA_GPU, XLA_CPU)
}


def backend_for(platform: str) -> Backend:
    """The backend of a platform. Raises `InputError` that lists the known ones for another."""
    for known, backend in BACKENDS.items():
        if platform == known:
            return backend
    raise InputError(f"no backend for platform {platform!r}; allowed: {', '.join(BACKENDS)}")
