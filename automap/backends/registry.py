"""The backends that plans are made for, by the platform that JAX lowers for."""

from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
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
    # Not `BACKENDS[platform]`: a platform from a file is any string.
    for known, backend in BACKENDS.items():
        if platform == known:
            return backend
    raise InputError(f"no backend for platform {platform!r}; allowed: {', '.join(BACKENDS)}")


def installed_version(package: str) -> str | None:
    """The version of a package that is installed here; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def version_warnings(
    backend: Backend, installed: Callable[[str], str | None] = installed_version
) -> tuple[str, ...]:
    """What a plan says if its compiler is `installed` in another version than its costs were fitted
    to.
    """
    # A backend to which nothing was fitted names no package.
    fitted = backend.fitted
    warning = fitted.warning(installed(fitted.package)) if fitted.package else None
    return () if warning is None else (warning,)
