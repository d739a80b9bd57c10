"""A step as its user wrote it -> what JAX traces of one call: a function of trees of arrays, and a
signature.

    function of arrays, or one of `jax.jit`    itself, under `jax.jit`
    what brings something along (a method, a   a traced form (`automap.step.traced_form`): objects
    callable object, `partial`), or is given   are split in arrays, which are traced, and a rest,
    modules of a library, or is jitted by one  which is static

Options of a step that is jitted already are its own.                           -> in: `Step.enter`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import jax
from jax.core import Tracer

from automap.errors import InputError
from automap.jax_compat import static_arguments
from automap.step.arguments import (
    ArgumentChoice,
    Unwrapped,
    bound_arguments,
    chosen_arguments,
    holds_object,
    positional_arguments,
    unwrap,
)
from automap.step.call import TracedCall, is_jitted, trace_call
from automap.step.libraries import Library, loaded_libraries
from automap.step.lru_cache import LRUCache
from automap.step.signature import Signature, leaf_keys
from automap.step.traced_form import STATIC, TracedForm


# Options of `jax.jit` that say which arguments are meant.
_ARGUMENT_OPTIONS: Final = {
    f"{kind}_{by}" for kind in ("static", "donate") for by in ("argnums", "argnames")
}


@dataclass(frozen=True)
class StepCall:
    """One call as JAX is given it; made by `Step.enter`.

    `leaves` are the arrays among `args` and `kwargs` in flattened order. `form` is None for a step
    that is traced as it is; else it has made them, of the caller's `objects`.
    """

    step: "Step"
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    leaves: Sequence[Any]
    signature: Signature
    form: TracedForm | None = None
    objects: Sequence[Sequence[Any]] = ()

    @cached_property
    def function(self) -> Callable[..., Any]:
        """What is traced: a jitted function of `args` and `kwargs`."""
        if self.form is None:
            return self.step.function
        return self.step.jitted_form(self.form, len(self.args))

    def traced(self) -> TracedCall:
        """The call, traced. Raises `InputError` around the step's own exceptions."""
        # A form calls the jitted step inside, whose donation holds.
        own = self.form is not None and self.step.is_jitted
        return trace_call(
            self.function,
            self.args,
            self.kwargs,
            self.step.name,
            self.step.mesh,
            donated_by="a call inside" if own else "the function",
        )

    def to_run(self) -> "StepCall":
        """The call itself. Raises `InputError` if JAX traces its arrays for another program."""
        if any(isinstance(leaf, Tracer) for leaf in self.leaves):
            raise InputError(
                f"{self.step.name}: a planned step was called inside a transformation of JAX "
                "(jax.grad, jax.jit, jax.vmap, jax.eval_shape, ...), with arrays that are traced; "
                "allowed: arrays, as a planned step is a program of its own; give "
                "automap.parallelize, or automap.plan, the whole function, gradient and update "
                "included, and transform the function that is not planned yet"
            )
        return self

    def own_result(self, result: Any) -> Any:
        """What the step itself returns, of `function`'s result; the caller's objects are
        updated.
        """
        if self.form is None:
            return result
        return self.form.leave(self.kwargs[STATIC], self.objects, result)


@dataclass(frozen=True)
class _Kind:
    """How calls with arguments of one structure are made; `static` are numbers of leaves."""

    has_form: bool
    static: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Step:
    """A step with its options, made by `as_step`; `mesh` has the axes, (name, size), for
    PartitionSpecs alone.

    `bound_first` is what `as_method` binds.
    """

    given: Callable[..., Any]
    options: Mapping[str, Any]
    name: str
    mesh: Sequence[tuple[str, int]] | None = None
    bound_first: tuple[Any, ...] = ()
    _kinds: LRUCache[_Kind] = field(default_factory=LRUCache)

    def as_method(self, instance: Any) -> "Step":
        """The step with its first argument bound, as it is looked up on an object."""
        return replace(self, bound_first=(instance, *self.bound_first))

    def enter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StepCall:
        """One call. Raises `InputError` for a step that cannot be traced with it."""
        args, kwargs = tuple(args), dict(kwargs)
        # What is bound has to be split from the function in every call, whatever its arguments are.
        if self._binds_arguments:
            return self._formed(args, kwargs)
        # What a later call of the same structure costs: one flattening and one look-up.
        leaves, tree = jax.tree.flatten((args, kwargs))
        kind = self._kinds.get(tree)
        if kind is None:
            kind = self._kind(args, kwargs)
            self._kinds.add(tree, kind)
        if kind.has_form:
            return self._formed(args, kwargs)
        signature = Signature(tree, leaf_keys(leaves, kind.static))
        if kind.static:
            leaves = [leaf for number, leaf in enumerate(leaves) if number not in kind.static]
        return StepCall(self, args, kwargs, leaves, signature)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The step under `jax.jit`. Raises `InputError` for what `jax.jit` does not take."""
        if self.is_jitted:
            return self.given
        try:
            return jax.jit(self.given, **self.options)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"jax.jit does not take the step: {error}; a step is a function of arrays, and its "
                "options are those of jax.jit"
            ) from error

    @cached_property
    def is_jitted(self) -> bool:
        """Whether the function inside is jitted already, by JAX or by a library."""
        return self._unwrapped.library is not None or is_jitted(self._unwrapped.function)

    def jitted_form(self, form: TracedForm, arguments: int) -> Callable[..., Any]:
        """A traced form of a call with as many positional arguments, under `jax.jit` with the
        step's options.
        """

        def traced_form(*args: Any, **kwargs: Any) -> Any:
            return form.call(args, kwargs)

        # jit shows this name in traces and as the module's name.
        traced_form.__name__ = getattr(form.function, "__name__", "step")
        donated = ArgumentChoice() if self.is_jitted else self._chosen("donate")
        return jax.jit(
            traced_form,
            # All that is no array is one static value, so that a change of it is traced anew.
            static_argnames=STATIC,
            donate_argnames=sorted(donated.names),
            donate_argnums=sorted(donated.positions(arguments)),
            **{k: v for k, v in self.options.items() if k not in _ARGUMENT_OPTIONS},
        )

    def argument_form(self, function: Callable[..., Any]) -> TracedForm:
        """The form of a function that makes arguments of the step: objects are split as the step's
        are.
        """
        return TracedForm(function, (), (), self._libraries, self._form.takes_all)

    @cached_property
    def _libraries(self) -> tuple[Library, ...]:
        return loaded_libraries()

    @cached_property
    def _unwrapped(self) -> Unwrapped:
        unwrapped = unwrap(self.given, self._libraries)
        return replace(unwrapped, positional=(*unwrapped.positional, *self.bound_first))

    @cached_property
    def _binds_arguments(self) -> bool:
        unwrapped = self._unwrapped
        return bool(unwrapped.positional or unwrapped.named) or unwrapped.library is not None

    @cached_property
    def _form(self) -> TracedForm:
        unwrapped, libraries = self._unwrapped, self._libraries
        positional, named = bound_arguments(
            unwrapped.function, unwrapped.positional, unwrapped.named, libraries
        )
        number = unwrapped.library
        is_whole = number is not None and libraries[number].splits_everything
        return TracedForm(
            unwrapped.function, positional, named, libraries, number if is_whole else None
        )

    def _formed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StepCall:
        static = self._static(len(args))
        positional, named, rest, objects = self._form.enter(
            args, kwargs, static.positions(len(args)), static.names
        )
        leaves, tree = jax.tree.flatten((positional, named))
        return StepCall(
            self,
            positional,
            {**named, STATIC: rest},
            leaves,
            Signature(tree, leaf_keys(leaves), rest),
            self._form,
            objects,
        )

    def _kind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Kind:
        """How to call with arguments of this structure."""
        if not self.is_jitted:
            if holds_object((args, kwargs), self._libraries):
                return _Kind(has_form=True)
            if not any(self.options.get(f"static_{by}") for by in ("argnums", "argnames")):
                return _Kind(has_form=False)
        # Which arguments of a jitted function are static only a trace says.
        # Once for each structure of arguments: the answer is kept in `_kinds`.
        call = trace_call(self.function, args, kwargs, self.name, self.mesh)
        return _Kind(False, _static_leaves(call, args, kwargs))

    def _static(self, arguments: int) -> ArgumentChoice:
        """Which of as many positional arguments, and which by name, are static."""
        if not self.is_jitted:
            return self._chosen("static")
        unwrapped = self._unwrapped
        # What is bound comes first, so the numbers of the caller's arguments are less by as many.
        bound = len(unwrapped.positional)
        library = None if unwrapped.library is None else self._libraries[unwrapped.library]
        inside = (
            unwrapped.function if library is None else library.jitted_function(unwrapped.function)
        )
        known = None if inside is None else static_arguments(inside, bound + arguments)
        if known is None:
            return ArgumentChoice()
        return ArgumentChoice(*known).without_first(bound)

    def _chosen(self, kind: Literal["static", "donate"]) -> ArgumentChoice:
        return chosen_arguments(self.given, self.options, kind).without_first(len(self.bound_first))


def as_step(
    given: Callable[..., Any],
    options: Mapping[str, Any] | None = None,
    mesh: Sequence[tuple[str, int]] | None = None,
    name: str | None = None,
) -> Step:
    """What a user gives as a step, with options of `jax.jit`; what `automap.parallelize` made is
    the step in it.

    Raises `InputError` for what cannot be called, and for options of a step that is jitted already
    or that a plan decides.
    """
    inner = getattr(given, "step", None)
    given_step = inner if isinstance(inner, Step) else None
    if not callable(given):
        raise InputError(f"the step is of type {type(given).__name__}, which cannot be called")
    _check_options(options or {})
    # `automap.parallelize` of a step that it made already: the function inside is planned.
    if given_step is not None and not options:
        return replace(given_step, mesh=mesh)
    step = Step(given, options or {}, name or _name(given), mesh)
    if step.is_jitted and options:
        raise InputError(
            f"{', '.join(options)}: the step is jitted already and keeps its own options; give the "
            "function before it is jitted, or drop them"
        )
    # Options that no call could be made with are refused here.
    _ = step.function
    return step


def _check_options(options: Mapping[str, Any]) -> None:
    decided = sorted({"in_shardings", "out_shardings", "device", "backend"} & set(options))
    if decided:
        raise InputError(f"{', '.join(decided)}: the plan decides these; pin inputs instead")


def _name(given: Callable[..., Any]) -> str:
    inside = getattr(given, "func", given)
    module, name = getattr(inside, "__module__", None), getattr(inside, "__qualname__", None)
    return f"{module}:{name}" if module and name else f"<{type(given).__name__}>"


def _static_leaves(
    call: TracedCall, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> frozenset[int]:
    """Numbers of the leaves that a traced call takes as static."""
    static, number = [], 0
    groups = [(i in call.positions, arg) for i, arg in enumerate(args)]
    groups += [(name in call.names, kwargs[name]) for name in sorted(kwargs)]
    for is_traced, value in groups:
        count = len(jax.tree.leaves(value))
        static += [] if is_traced else range(number, number + count)
        number += count
    return frozenset(static)


def traced_call(
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    mesh: Sequence[tuple[str, int]] | None = None,
) -> TracedCall:
    """A step that may be of any kind, traced with arrays or `jax.ShapeDtypeStruct`s; see `as_step`.

    Raises `InputError` around the step's own exceptions.
    """
    return (
        as_step(step, mesh=mesh, name=name).enter(positional_arguments(args), kwargs or {}).traced()
    )
