"""What can be chosen by name is what there is, and the command's options are what it runs with."""

from importlib import import_module
import inspect

from click.testing import CliRunner
import pytest

from automap import choices
from automap.cli import main
from automap.cli.group import Command
from automap.pipeline.search import PIPELINE_STRATEGIES
from automap.search import STRATEGIES
from automap.space.presets import PRESETS
from automap.verify.compilers import COMPILERS


@pytest.mark.parametrize(
    ("names", "implemented"),
    [
        (choices.STRATEGIES, STRATEGIES),
        (choices.PIPELINE_STRATEGIES, PIPELINE_STRATEGIES),
        (choices.PRESETS, PRESETS),
        (dict.fromkeys(choices.CompilerName.__args__, ""), COMPILERS),
    ],
    ids=["strategies", "pipelines", "presets", "compilers"],
)
def test_every_name_has_what_it_stands_for(names, implemented):
    assert list(names) == list(implemented)


@pytest.mark.parametrize("name", main.commands)
def test_a_command_runs_with_exactly_its_options(name):
    command = main.commands[name]
    assert isinstance(command, Command)
    taken = inspect.signature(import_module(f"automap.cli.run.{name}").run).parameters
    options = {parameter.name for parameter in command.params if parameter.expose_value}
    named = {n for n, p in taken.items() if p.kind is not p.VAR_KEYWORD}
    assert named <= options
    assert named == options or len(taken) > len(named)


@pytest.mark.parametrize("name", ["", *main.commands])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_ends_with_examples_that_the_command_can_read(name, flag):
    done = CliRunner().invoke(main, [*filter(None, [name]), flag])
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80
    # A long one goes on behind a backslash, as a shell has it.
    text = done.output.partition("Examples:")[2].replace("\\\n", " ")
    examples = text.strip().splitlines()
    lines = [line.strip().split() for line in examples if line.strip().startswith("$")]
    assert lines
    for _, program, command, *arguments in lines:
        assert program == "automap"
        unquoted = [argument.strip('"') for argument in arguments]
        main.commands[command].make_context(command, unquoted)


def test_help_says_in_a_line_what_each_strategy_and_preset_is():
    text = " ".join([*CliRunner().invoke(main, ["plan", "--help"]).output.split(), ""])
    for table in (choices.STRATEGIES, choices.PIPELINE_STRATEGIES, choices.PRESETS):
        for name, line in table.items():
            assert f" {name} {line} " in text, name


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("automap ver", "verify"),
        ("automap plan --strategy rain", "rainbow"),
        ("automap plan --preset zero", "zero-3"),
        ("automap plan --space pi", "pipeline"),
        ("automap plan --verify-t", "--verify-top"),
    ],
)
def test_the_shell_completes_commands_options_and_names(words, offered):
    place = str(len(words.split()) - 1)
    variables = {"_AUTOMAP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    done = CliRunner().invoke(main, prog_name="automap", env=variables)
    assert offered in [line.partition(",")[2] for line in done.output.splitlines()]
