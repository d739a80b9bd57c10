"""The only file here that touches jaxlib: HLO text and StableHLO to a serialized HLO proto,
StableHLO for older readers.

Checked with jaxlib 0.10.2 and 0.12.0.1 (2026-11).  Parsers are looked up where either has them.
"""

from collections.abc import Callable
import importlib
from typing import Any

from hlo_tools.errors import HloError


# In the order in which they are tried; jaxlib has moved these functions between versions.
_TEXT_PARSERS = (
    ("jaxlib._hlo", "hlo_module_from_text"),
    ("jaxlib._jax", "hlo_module_from_text"),
    ("jaxlib.xla_client._xla", "hlo_module_from_text"),
)
_MLIR_CONVERTERS = (
    ("jaxlib._jax", "mlir.mlir_module_to_xla_computation"),
    ("jaxlib.xla_client._xla", "mlir.mlir_module_to_xla_computation"),
)


def _find(places: tuple[tuple[str, str], ...], purpose: str) -> Callable[..., Any]:
    for module_name, path in places:
        try:
            attribute: Any = importlib.import_module(module_name)
            for part in path.split("."):
                attribute = getattr(attribute, part)
        except (ImportError, AttributeError):
            continue
        return attribute
    raise HloError(f"this jaxlib cannot read {purpose}; pass a serialized HLO proto instead")


def _first_lines(error: Exception) -> str:
    """The parser's message up to where it shows the code, on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__


def text_to_proto(text: str) -> bytes:
    """HLO text to a serialized HloModuleProto. Raises `HloError` with the parser's first lines."""
    parse = _find(_TEXT_PARSERS, "HLO text")
    try:
        return parse(text).as_serialized_hlo_module_proto()
    except Exception as error:  # noqa: BLE001 - the parser raises XLA's own types
        raise HloError(f"not valid HLO text: {_first_lines(error)}") from error


def stablehlo_to_proto(module: str | bytes) -> bytes:
    """StableHLO text or bytecode to a serialized HloModuleProto. Raises `HloError` likewise."""
    convert = _find(_MLIR_CONVERTERS, "StableHLO")
    try:
        # One HLO parameter for each argument: their numbers are those of the flattened arguments.
        computation = convert(module, use_tuple_args=False, return_tuple=False)
        return computation.as_serialized_hlo_module_proto()
    except Exception as error:  # noqa: BLE001 - the converter raises XLA's own types
        raise HloError(f"not valid StableHLO: {_first_lines(error)}") from error


def portable_stablehlo(module: Any, version: str) -> bytes:
    """A StableHLO module (an MLIR object) in the format of a version, as a jaxlib of its time reads
    it.

    Raises `HloError` for an operation that the version does not have.
    """
    try:
        write = importlib.import_module(
            "jaxlib.mlir.dialects.stablehlo"
        ).serialize_portable_artifact
        return write(module, version, allow_other_dialects=True)
    except Exception as error:  # noqa: BLE001 - the serializer raises its own types
        raise HloError(
            f"cannot be written in StableHLO {version}: {_first_lines(error)}"
        ) from error
