"""What XLA for GPUs fuses of a step's equations, and so writes to memory or makes again.

light      elementwise equations, views and casts that are no operator: XLA makes them part of each
           kernel that reads them
heavy      all others, which are kernels, and the light ones that a library's kernel or a pooling
           takes in: bias and ReLU behind a product, factors behind a window     -> in: `_taken_in`
stored     light equations whose results are written. Those that a library loads, and what several
           read that is made of S bytes and has V, where S > 1.5 V          -> in: `Fusions.sources`
basis      of a light one, the heavy equations that it is made of through light ones
demand     of a light one, the heavy equations that read it through light ones, and the step's end

Sets of heavy equations are the bits of integers; light equations with equal operands are one
                                                                 -> in: `as_compiled`
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import jax
from jax import lax
from jax.extend import core
import numpy as np

from automap.jax_compat import open_jaxpr, weak_shape
from automap.jaxpr.blocks import variables
from automap.jaxpr.flatten import Equation, FlatJaxpr


_LIGHT: Final = frozenset(
    """
        abs add add_any and broadcast_in_dim cbrt ceil clamp convert_element_type copy cos div
        eq erf erf_inv erfc exp exp2 expand_dims expm1 floor ge gt integer_pow iota is_finite le log
        log1p logistic lt max min mul ne neg not or pad pow real rem reshape rev round rsqrt
        select_n sharding_constraint sign sin slice sqrt square squeeze stop_gradient sub tan tanh
        transpose xor
    """.split()
)
_PRODUCTS: Final = frozenset({"conv_general_dilated", "dot_general"})
_FACTORS: Final = frozenset({"div", "mul"})
# A value that several read is written if making it again reads more than this many times its bytes.
_RECOMPUTE_RATIO: Final = 1.5
END: Final = 1
"""The bit of the step's end in a demand."""


@dataclass(frozen=True)
class Fusions:
    """The equations of a step by path; `operators` are those that a schedule names."""

    flat: FlatJaxpr
    operators: frozenset[str]

    @cached_property
    def equations(self) -> Mapping[str, Equation]:
        """All of the step's own."""
        return {equation.path: equation for equation in self.flat.equations}

    @cached_property
    def maker(self) -> Mapping[Any, str]:
        """The equation that makes each variable."""
        return {var: e.path for e in self.flat.equations for var in e.eqn.outvars}

    @cached_property
    def readers(self) -> Mapping[Any, list[str]]:
        """The equations that read each variable."""
        readers: dict[Any, list[str]] = {}
        for equation in self.flat.equations:
            for var in dict.fromkeys(variables(equation.eqn.invars)):
                readers.setdefault(var, []).append(equation.path)
        return readers

    @cached_property
    def outputs(self) -> frozenset[Any]:
        """The variables that the step returns."""
        return frozenset(variables(self.flat.outvars))

    @cached_property
    def taken_in(self) -> Mapping[str, tuple[str, ...]]:
        """Of heavy equations, those that become part of their kernel."""
        chains = {p: tuple(self._taken_in(p)) for p in self.equations if not self._is_plain(p)}
        return {path: chain for path, chain in chains.items() if chain}

    @cached_property
    def light(self) -> frozenset[str]:
        """The equations that every reader makes part of its kernel."""
        taken = {path for chain in self.taken_in.values() for path in chain}
        return frozenset(path for path in self.equations if self._is_plain(path)) - taken

    @cached_property
    def bit(self) -> Mapping[str, int]:
        """Of each heavy equation."""
        heavy = [path for path in self.equations if path not in self.light]
        return {path: 2 << number for number, path in enumerate(heavy)}

    @cached_property
    def basis(self) -> Mapping[str, int]:
        """Of each light equation."""
        basis: dict[str, int] = {}
        for path, equation in self.equations.items():
            if path in self.light:
                basis[path] = 0
                for maker in self.makers(equation):
                    basis[path] |= self.bit[maker] if maker in self.bit else basis[maker]
        return basis

    @cached_property
    def demand(self) -> Mapping[str, int]:
        """Of each light equation."""
        demand: dict[str, int] = {}
        for path, equation in reversed(list(self.equations.items())):
            if path in self.light:
                demand[path] = 0
                for var in equation.eqn.outvars:
                    demand[path] |= END if var in self.outputs else 0
                    for reader in self.readers.get(var, ()):
                        demand[path] |= self.bit.get(reader) or demand[reader]
        return demand

    @cached_property
    def sources(self) -> Mapping[str, frozenset[Any]]:
        """Of the light equations whose results are written, what their kernels read."""
        return dict(self._stored())

    def makers(self, equation: Equation) -> list[str]:
        """The equations whose results one reads."""
        made = (self.maker.get(var) for var in variables(equation.eqn.invars))
        return list(dict.fromkeys(path for path in made if path is not None))

    def _is_plain(self, path: str) -> bool:
        return path not in self.operators and is_light(self.equations[path])

    def _taken_in(self, path: str) -> Iterator[str]:
        """One reader after another, as long as each is the only one."""
        eqn = self.equations[path].eqn
        is_product, count = eqn.primitive.name in _PRODUCTS, 0
        if not is_product and not eqn.primitive.name.startswith("reduce_window"):
            return
        while len(eqn.outvars) == 1:
            (var,) = eqn.outvars
            readers = self.readers.get(var, [])
            if len(readers) != 1 or var in self.outputs or not self._is_plain(readers[0]):
                return
            reader = self.equations[readers[0]].eqn
            others = [a for a in reader.invars if a is not var]
            is_taken = (
                self._is_bias_or_relu(reader, others, count)
                if is_product
                else reader.primitive.name in _FACTORS and all(map(self._is_constant, others))
            )
            if not is_taken or reader.outvars[0].aval.shape != var.aval.shape:
                return
            yield readers[0]
            eqn, count = reader, count + 1

    def _is_bias_or_relu(self, reader: Any, others: Sequence[Any], count: int) -> bool:
        """Whether cuDNN and cuBLAS take it in: a vector is added first, then max(x, 0)."""
        if len(others) != 1:
            return False
        (other,) = others
        if reader.primitive.name == "add" and count == 0:
            rows = reader.outvars[0].aval.shape
            is_vector = bool(rows) and other.aval.size <= rows[-1]
            return is_vector and self._is_constant(other)
        is_scalar = isinstance(other, core.Literal) and np.ndim(other.val) == 0
        return reader.primitive.name == "max" and count == 1 and is_scalar and other.val == 0

    def _is_constant(self, atom: Any) -> bool:
        """Whether an operand is made of the step's inputs by plain equations alone."""
        todo = [] if isinstance(atom, core.Literal) else [atom]
        while todo:
            path = self.maker.get(todo.pop())
            if path is not None:
                if not self._is_plain(path):
                    return False
                todo += variables(self.equations[path].eqn.invars)
        return True

    def _stored(self) -> Iterator[tuple[str, frozenset[Any]]]:
        sources: dict[Any, frozenset[Any]] = {}
        for path, equation in self.equations.items():
            if path not in self.light:
                continue
            for var in equation.eqn.outvars:
                read = [sources.get(v, frozenset([v])) for v in variables(equation.eqn.invars)]
                sources[var] = frozenset[Any]().union(*read)
                readers = self.readers.get(var, [])
                n_read = sum(_n_bytes(source) for source in sources[var])
                is_dear = len(readers) > 1 and n_read > _RECOMPUTE_RATIO * _n_bytes(var)
                is_loaded = any(self._loads(reader) for reader in readers)
                if is_dear or is_loaded or var in self.outputs:
                    yield path, sources[var]
                    sources[var] = frozenset([var])

    def _loads(self, path: str) -> bool:
        """Whether an equation's kernel reads its operands from memory: XLA's own kernels make them
        as they read.
        """
        name = self.equations[path].eqn.primitive.name
        is_own = name in _LIGHT or name.startswith(("reduce_", "arg")) or name == "concatenate"
        return path not in self.light and not is_own


def is_light(equation: Equation) -> bool:
    """Whether an equation is one that XLA makes part of what reads it."""
    return equation.eqn.primitive.name in _LIGHT


def as_compiled(flat: FlatJaxpr, operators: Collection[str], merged: Collection[str]) -> FlatJaxpr:
    """The step as XLA has it before it fuses: of several light equations that make the same of the
    same there is one, and an image is padded before a convolution whose padding differs at its
    ends, which no library takes; not those that are to be `merged`, whose padding is to be another.
    """
    same: dict[Any, Any] = {}
    first: dict[object, Sequence[Any]] = {}
    kept = []

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else same.get(atom, atom)

    for given in flat.equations:
        eqn = given.eqn.replace(invars=[read(atom) for atom in given.eqn.invars])
        given = replace(given, eqn=eqn)
        for equation in (given,) if given.path in merged else _padded(given):
            eqn = equation.eqn.replace(invars=[read(atom) for atom in equation.eqn.invars])
            if equation.path not in operators and is_light(equation):
                operands = tuple(
                    (str(a.val), str(a.aval)) if isinstance(a, core.Literal) else a
                    for a in eqn.invars
                )
                key = (eqn.primitive.name, operands, str(sorted(eqn.params.items())))
                made = first.setdefault(key, eqn.outvars)
                if made is not eqn.outvars:
                    same.update(zip(eqn.outvars, made, strict=True))
                    continue
            kept.append(replace(equation, eqn=eqn))
    outvars = tuple(read(atom) for atom in flat.outvars)
    return replace(flat, equations=tuple(kept), outvars=outvars)


def _padded(equation: Equation) -> Iterator[Equation]:
    """A convolution behind the padding by which its image's ends differ; others as they are."""
    eqn = equation.eqn
    is_convolution = eqn.primitive.name == "conv_general_dilated"
    padding: Sequence[tuple[int, int]] = eqn.params["padding"] if is_convolution else ()
    least = [min(both) for both in padding]
    is_even = all(low == high for low, high in padding)
    if is_even or min(least) < 0 or max(eqn.params["lhs_dilation"]) > 1:
        yield equation
        return
    (image, weights), dims = eqn.invars, eqn.params["dimension_numbers"].lhs_spec[2:]
    around = [(0, 0, 0)] * image.aval.ndim
    for dim, (low, high), both in zip(dims, padding, least, strict=True):
        around[dim] = (low - both, high - both, 0)
    zero = np.zeros((), image.aval.dtype)[()]
    traced = jax.make_jaxpr(lambda x: lax.pad(x, zero, around))(weak_shape(image.aval))
    (made,) = open_jaxpr(traced)[0].eqns
    wider = core.Var(made.outvars[0].aval)
    pad = made.replace(invars=[image, made.invars[1]], outvars=[wider], source_info=eqn.source_info)
    yield replace(equation, path=f"pad {equation.path}", eqn=pad)
    params = {**eqn.params, "padding": tuple((both, both) for both in least)}
    yield replace(equation, eqn=eqn.replace(invars=[wider, weights], params=params))


def _n_bytes(var: Any) -> int:
    return var.aval.size * getattr(var.aval.dtype, "itemsize", 0)
