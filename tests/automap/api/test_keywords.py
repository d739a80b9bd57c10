"""One description of the options: signature, docstring, help and type hints say the same."""

import inspect
from typing import Any, get_type_hints

import click
import jax
import pytest

import automap
from automap.api.keywords import JitKeywords, with_options
from automap.choices import KnownNames, Option
from automap.cli import main
from automap.cli.commands import flag
from automap.compiler_options import REFINE, VERIFY, VERIFY_TOP
from automap.config import (
    TOPOLOGY,
    OptionKeywords,
    Options,
    described_options,
    read_options,
)
from automap.errors import InputError


OPTIONS = {option.name: option for option in described_options()}
FUNCTIONS = (automap.plan, automap.parallelize)


def _words(text: str | None) -> str:
    return " ".join((text or "").split())


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_function_has_every_option_as_a_keyword_with_its_sentence(function, name):
    option = OPTIONS[name]
    parameter = inspect.signature(function).parameters[name]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert parameter.default == option.default and parameter.annotation == option.type
    assert f" {name}: {_words(option.text('python'))}. " in _words(function.__doc__)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_has_every_option_with_its_sentence(name):
    option = OPTIONS[name]
    parameters = {parameter.name: parameter for parameter in main.commands["plan"].params}
    given = parameters[name]
    assert isinstance(given, click.Option)
    assert given.help == option.text("command")
    compared = [parameter.name for parameter in main.commands["compare"].params]
    assert (name in compared) == (name != "preset")


def test_the_command_has_the_described_defaults():
    command = main.commands["plan"]
    given = command.make_context("plan", ["train:small", "--topology", "v5e:2x2"]).params
    read = {name: given[name] for name in OPTIONS}
    assert read_options(**{**read, "rules": dict(read["rules"])}) == Options()


@pytest.mark.parametrize(
    "option", [TOPOLOGY, VERIFY, VERIFY_TOP, REFINE], ids=lambda option: option.name
)
def test_parameters_of_plan_alone_are_described_too(option):
    parameter = inspect.signature(automap.plan).parameters[option.name]
    default = parameter.empty if option.is_required else option.default
    assert parameter.default == default
    assert f" {option.name}: {_words(option.text('python'))}. " in _words(automap.plan.__doc__)
    parameters = {parameter.name: parameter for parameter in main.commands["plan"].params}
    assert getattr(parameters[option.name], "help", None) == option.text("command")


def test_type_checkers_see_the_names_and_types_that_are_described():
    assert get_type_hints(OptionKeywords) == {name: option.type for name, option in OPTIONS.items()}
    assert not set(JitKeywords.__annotations__) & set(OPTIONS)
    # Other versions of JAX may have more.
    assert set(JitKeywords.__annotations__) <= set(inspect.signature(jax.jit).parameters)


def test_what_is_not_given_has_the_described_default():
    assert read_options() == Options()
    assert read_options(**{name: option.default for name, option in OPTIONS.items()}) == Options()


def test_an_option_of_another_description_appears_everywhere():
    option = Option(
        name="slack",
        type=float,
        default=0.5,
        unit="seconds",
        help="to spare",
        choices=(KnownNames(names={"some": "", "more": ""}, space="hybrid"),),
    )

    @with_options([option])
    def function(step: Any, **options: Any) -> dict[str, Any]:
        """One line.

        Args:
            step: a step.
            **options: see there,
                over two lines.

        Raises:
            Nothing.
        """
        return options

    parameters = inspect.signature(function).parameters
    assert str(parameters["slack"]) == "slack: float = 0.5" and list(parameters) == [
        "step",
        "slack",
    ]
    assert inspect.getdoc(function) == (
        "One line.\n\nArgs:\n    step: a step.\n"
        '    slack: seconds to spare: with space="hybrid" some, more.\n\nRaises:\n    Nothing.'
    )
    assert flag(option).opts == ["--slack"]
    assert flag(option).help == "seconds to spare: with --space hybrid some, more"
    assert flag(option).default == 0.5


def test_an_unknown_keyword_is_a_type_error_that_lists_the_known_ones():
    said = r"unexpected keyword argument 'bugdet': did you mean budget\? allowed: mesh, "
    with pytest.raises(TypeError, match=said):
        automap.plan(lambda x: x, (1.0,), topology="cpu:1", bugdet=3)  # pyright: ignore


def test_the_decorator_knows_its_own_keywords_and_those_of_jit():
    said = r"'cachedir': did you mean cache_dir\? allowed: topology, .*; of jax.jit: .*donate"
    with pytest.raises(TypeError, match=said):
        automap.parallelize(lambda x: x, cachedir="plans")
    with pytest.raises(TypeError, match="'zzz'; allowed: topology, "):
        automap.parallelize(lambda x: x, zzz=1)
    automap.parallelize(lambda x: x, donate_argnums=0, budget=1)


@pytest.mark.parametrize("mesh", [(4, 2), 8, {1: 2}, {"data": 4.0}, {"data": "4,model=2"}])
def test_a_mesh_of_another_type_is_refused_with_what_is_allowed(mesh):
    with pytest.raises(InputError, match='data=4,model=2 as a text, or {"data": 4, "model": 2}'):
        automap.parallelize(lambda x: x, mesh=mesh)


@pytest.mark.parametrize("args", [{"w": 1.0}, 1.0, "w"], ids=["tree", "leaf", "text"])
@pytest.mark.parametrize("function", [automap.plan, automap.compare])
def test_arguments_that_are_no_tuple_are_refused(function, args):
    with pytest.raises(InputError, match=r"allowed: the tuple of .* \(params, batch\) for step"):
        function(lambda w: w, args, topology="cpu:1")


def test_tensors_of_pytorch_are_refused_with_what_to_write():
    """A class by the name and module of torchax's own, which is not among the requirements."""
    tensor = type("Tensor", (), {"__module__": "torchax.tensor"})()
    view = r"torchax.interop.torch_view\(automap.parallelize\(torchax.interop.jax_view\(step\)\)\)"
    with pytest.raises(InputError, match=view):
        automap.parallelize(lambda x: x, topology="cpu:1")(tensor)
