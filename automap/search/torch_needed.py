"""Whether the learning agents' library is there; asked before `rl` is imported."""

from importlib.util import find_spec

from automap.errors import InputError


def need_torch() -> None:
    """Raise `InputError` if torch is not installed."""
    if find_spec("torch") is None or find_spec("safetensors") is None:
        raise InputError("the learning agents need PyTorch: pip install 'jax-automap[rl]'")
