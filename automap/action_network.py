"""The network of the pretrained agents in numpy, and the files of its weights: nothing of torch is
needed to infer.

It is `rl.networks.ActionNetwork`, of hidden layers of one width. Of the actions a of a state, which
may be any number and in any order,

    h(a) = g(features of a),  c = k(mean and max of h over the actions, flat)
    z(a) = v(c) + u(m(h(a), c)) - mean over the actions of u

with g, k, m two layers with ReLU, v and u one layer each (the dueling form of Auto-MAP's Rainbow,
section 2)                                                            -> in: `learnt_values`

A file is safetensors: loading runs no code.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from safetensors import SafetensorError, safe_open

from automap.errors import InputError
from hlo_tools.errors import FileError
from hlo_tools.files import check_file


# Far above the shipped files: what is larger is no file of ours, and is not read into memory.
_MOST_BYTES: Final = 2**28
Weights = dict[str, np.ndarray]
"""Arrays by name, float32, as `shapes` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFormat:
    """What a file of weights has to be: the format of its header, the numbers that describe an
    action and a state, and the script that trains such weights.
    """

    name: str
    n_features: int
    n_flat: int
    trained_by: str


def shapes(format_: WeightsFormat, width: int) -> dict[str, tuple[int, ...]]:
    """The shape of every array, for hidden layers of `width`."""
    inputs = {
        "action": format_.n_features,
        "context": 2 * width + format_.n_flat,
        "mixed": 2 * width,
    }
    shapes_by_name: dict[str, tuple[int, ...]] = {}
    for name, n_inputs in inputs.items():
        # Names as torch gives them: layer 1 of each block is the ReLU between these two.
        shapes_by_name |= {f"{name}.0.weight": (width, n_inputs), f"{name}.0.bias": (width,)}
        shapes_by_name |= {f"{name}.2.weight": (width, width), f"{name}.2.bias": (width,)}
    for name in ("value", "advantage"):
        shapes_by_name |= {f"{name}.weight": (1, width), f"{name}.bias": (1,)}
    return shapes_by_name


def load_weights(path: Path, format_: WeightsFormat) -> Weights:
    """Read weights. Raises `InputError` for a file that is absent, malformed, or of another
    network.
    """
    remedy = f"install the package anew, or train them with {format_.trained_by}"
    try:
        check_file(path, _MOST_BYTES)
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            odd = {name: kind for name, kind in types.items() if kind != "F32"}
            # numpy has not all types that such a file may have.
            weights = {} if odd else {name: file.get_tensor(name) for name in types}
    except (FileError, OSError, SafetensorError) as error:
        raise InputError(f"{path}: no weights of an agent: {error}; {remedy}") from error
    if odd:
        name, kind = next(iter(odd.items()))
        raise InputError(f"{path}: {name[:80]} is {kind}, allowed: F32; {remedy}")
    if header.get("format") != format_.name:
        raise InputError(
            f"{path}: its format is {header.get('format')!r}, not {format_.name!r}; {remedy}"
        )
    # The width is whatever the first layer's bias has: all other shapes follow from it.
    first = weights.get("action.0.bias", np.zeros(0))
    wanted = shapes(format_, max(first.size, 1))
    if set(weights) != set(wanted):
        others = ", ".join(sorted(set(weights) ^ set(wanted)))[:400]
        raise InputError(f"{path}: arrays that are missing or too many: {others}; {remedy}")
    for name, array in weights.items():
        if array.shape != wanted[name] or array.dtype != np.float32:
            raise InputError(
                f"{path}: {name} is {array.dtype} {list(array.shape)}, allowed: float32 "
                f"{list(wanted[name])}; {remedy}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"{path}: {name} has numbers that are not finite; {remedy}")
    return weights


def learnt_values(weights: Weights, features: np.ndarray, flat: np.ndarray) -> np.ndarray:
    """z of the actions of a state, float32 [A], from their features [A, F] and the state's."""
    hidden = _perceptron(weights, "action", features)
    context = _perceptron(
        weights, "context", np.concatenate([hidden.mean(0), hidden.max(0), flat])[None]
    )
    # The context's part of the next layer is the same for all actions.
    width = hidden.shape[1]
    first = weights["mixed.0.weight"]
    mixed = hidden @ first[:, :width].T + (context @ first[:, width:].T + weights["mixed.0.bias"])
    mixed = np.maximum(mixed, 0.0) @ weights["mixed.2.weight"].T + weights["mixed.2.bias"]
    advantage = (np.maximum(mixed, 0.0) @ weights["advantage.weight"].T)[:, 0]
    value = (context @ weights["value.weight"].T + weights["value.bias"])[0, 0]
    return value + (advantage - advantage.mean())


def _perceptron(weights: Weights, name: str, inputs: np.ndarray) -> np.ndarray:
    for layer in ("0", "2"):
        inputs = inputs @ weights[f"{name}.{layer}.weight"].T + weights[f"{name}.{layer}.bias"]
        inputs = np.maximum(inputs, 0.0)
    return inputs
