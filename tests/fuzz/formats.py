"""Every format that is read from outside: how an input is made, and where it goes, as a user's
would.

What a command reads goes through the command, in this process; its own errors are refusals,
anything else that is raised is a failure. Parsers of XLA run in a child as always, but one child
serves many inputs                                                           -> in: `one_parser`
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
import gzip
import io
import json
from pathlib import Path
from random import Random
from typing import Any, Final, Literal
from unittest import mock
import warnings

import jax
import tomli_w

from automap.action_network import load_weights
from automap.advise.request import read_prices
from automap.api.call_plans import load_cached as load_plan
from automap.api.plan import Plan
from automap.cli import main
from automap.cost.profile.prices import CompiledDot
from automap.cost.profile.signatures import DotSignature
from automap.errors import AutomapError
from automap.exit_status import ExitStatus
from automap.jaxpr.reemit import Reemitter
from automap.pipeline.agent.network import FORMAT as WEIGHTS_FORMAT
from automap.program import read_workload
from automap.refine.attribution import load_prices
from automap.step.call import TracedCall, trace_call
from automap.verify.cache import load_answer, load_cached as load_witness, program_name
from hlo_tools.read import content
from hlo_tools.read.parser import Parser
from rl.checkpoint import load as load_checkpoint, part
from rl.errors import RlError
from tests.fuzz import seeds
from tests.fuzz.mutations import (
    NUMBERS,
    changed_bytes,
    changed_json,
    changed_proto,
    changed_text,
    json_text,
    several,
)


Outcome = Literal["refused", "accepted"]
_FAILURES: Final = (ExitStatus.INTERNAL_ERROR, ExitStatus.INTERRUPTED, ExitStatus.TERMINATED)


@dataclass(frozen=True)
class Format:
    """A kind of input: `make` writes one, `use` does with the file what a user would."""

    make: Callable[[Random], bytes]
    use: Callable[[Path, Random], Outcome]


@contextmanager
def one_parser() -> Iterator[None]:
    """The parser's process is kept from input to input, and started anew when it has ended."""
    with Parser() as parser:

        @contextmanager
        def kept() -> Iterator[Parser]:
            yield parser

        with mock.patch.object(content, "Parser", kept):
            yield


class CommandFailed(Exception):
    """The command met an error of its own; the message ends with where."""


def command(*words: str) -> Outcome:
    """Runs the command in this process; refused unless it ends with status 0."""
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        status = main(list(words), prog_name="automap", standalone_mode=False)
    if status in _FAILURES:
        lines = said.getvalue().strip().splitlines()
        places = [line.strip() for line in lines if line.strip().startswith("File ")][-2:]
        raise CommandFailed(f"status {status}: {' '.join(places)} {lines[-2:-1]}")
    return "refused" if status else "accepted"


def _planned(path: Path, random: Random) -> Outcome:
    """A program is read and analysed; one in four is planned, with a preset or a search."""
    if random.randrange(4):
        try:
            read_workload(path)
        except AutomapError:
            return "refused"
        return "accepted"
    how = random.choice((("--preset", "zero-3"), ("--strategy", "greedy", "--budget", "0.3")))
    topology = random.choice(("4xh100", "v5e:2x2"))
    return command("plan", str(path), "--topology", topology, *how)


def _plan_file(path: Path, random: Random) -> Outcome:
    """Load, explain, diff, simulate, and for a step the check of `Plan.jit`."""
    outcome = command("explain", str(path))
    if outcome == "refused":
        return outcome
    whole = path.with_name("whole.json")
    whole.write_bytes(json.dumps(random.choice(seeds.plans())).encode())
    command("explain", str(path), str(whole))
    command("explain", str(path), "[0]")
    command("simulate", str(path), "--json")
    steps = {id(step): step for step, _ in seeds.PLANNED}.values()
    return outcome if any(_prepared(path, step) for step in steps) else "refused"


def _prepared(path: Path, step: seeds.Step) -> bool:
    """Whether the plan is one of the step, and is made ready to run on this machine's devices."""
    try:
        loaded = Plan.load(path)
        loaded.jit(step.function, jax.devices()[: step.n_devices]).prepare(*step.args)
    except AutomapError:
        return False
    return True


def _topology_file(path: Path, random: Random) -> Outcome:
    toml = path.rename(path.with_suffix(".toml"))
    outcome = command("topologies", str(toml))
    if outcome == "accepted":
        program = path.with_name("program.pb")
        program.write_bytes(seeds.protos()[0])
        command("plan", str(program), "--topology", str(toml), "--preset", "zero-3")
    return outcome


def _profile(path: Path, random: Random) -> Outcome:
    program = path.with_name("program.pb")
    program.write_bytes(random.choice(seeds.protos()))
    options = ("--topology", "cpu:4", "--preset", "zero-3", "--profile", str(path))
    return command("plan", str(program), *options)


def _loaded(load: Callable[[Path], Any]) -> Callable[[Path, Random], Outcome]:
    def use(path: Path, random: Random) -> Outcome:
        try:
            load(path)
        except (AutomapError, RlError):
            return "refused"
        return "accepted"

    return use


def _load_weights(path: Path) -> None:
    load_weights(path, WEIGHTS_FORMAT)


def _load_agent(path: Path) -> None:
    part(load_checkpoint(path), "agent")


def _witness(path: Path, random: Random) -> Outcome:
    """An entry of a cache that cannot be used is a miss."""
    path.with_name(program_name(path.stem)).write_bytes(b"program")
    path.rename(path.with_suffix(".json"))
    found = load_witness(path.parent, path.stem)
    if found is not None:
        found[0].to_json()
    return "refused" if found is None else "accepted"


def _answer(path: Path, random: Random) -> Outcome:
    """As `_witness`; the programs that an entry names are there."""
    path.rename(path.with_name("key.json"))
    for number in range(3):
        path.with_name(f"key-{number}.pb.gz").write_bytes(b"program")
    return "refused" if load_answer(path.parent, "key") is None else "accepted"


def _kernel_prices(path: Path, random: Random) -> Outcome:
    """What cannot be used is warned of, and as if there were none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        prices = load_prices(path)
    dot = DotSignature(dtype="bf16", batch=1, m=8, n=16, k=8)
    row = CompiledDot(signature=dot, seconds=1e-6, predicted_seconds=1e-6)
    prices.with_kernels([row])
    return "refused" if said else "accepted"


def _degrees(path: Path, random: Random) -> Outcome:
    """Another program's configuration, read as MaxText's and as Megatron's."""
    said = [
        command("degrees", str(path), "--from", program, "--topology", "4x8xh100", "--json")
        for program in ("maxtext", "megatron")
    ]
    return "accepted" if "accepted" in said else "refused"


def _plan_entry(path: Path, random: Random) -> Outcome:
    path.rename(path.with_suffix(".json"))
    call, reemitter = _traced()
    found = load_plan(path.parent, path.stem, call, reemitter)
    if found is None:
        return "refused"
    try:
        found.jit(seeds.STEPS[0].function, jax.devices()[:4]).prepare(*seeds.STEPS[0].args)
    except AutomapError:
        return "refused"
    return "accepted"


@cache
def _traced() -> tuple[TracedCall, Reemitter]:
    step = seeds.STEPS[0]
    call = trace_call(jax.jit(step.function), step.args, {})
    return call, Reemitter(call.jaxpr)


def _command_line(path: Path, random: Random) -> Outcome:
    words = json.loads(path.read_bytes())
    names = {
        "PROGRAM": seeds.protos()[0],
        "PLAN": json.dumps(seeds.plans()[0]).encode(),
        "PIPELINE": json.dumps(seeds.plans()[2]).encode(),
        "FOLDER": None,
    }
    for name, data in names.items():
        place = path.with_name(name)
        if data is None:
            place.mkdir()
        else:
            place.write_bytes(data)
        words = [word.replace(name, str(place)) for word in words]
    # Commands that work for minutes with what they are given are kept short.
    if words and words[0] in ("plan", "compare"):
        words += ["--budget", "0.2"]
    return command(*words) if words[:1] != ["calibrate"] else _bad_calibration(words)


def _bad_calibration(words: list[str]) -> Outcome:
    """`calibrate` works for minutes unless it is refused."""
    return command(*words, "--device-count", random_count(words))


def random_count(words: list[str]) -> str:
    """A count of devices that no machine has."""
    return str(10**6 + len(words))


_COMMANDS: Final = ("plan", "compare", "explain", "verify", "simulate", "topologies", "calibrate")
_WORDS: Final = (
    "PROGRAM", "PLAN", "PIPELINE", "FOLDER", "/dev/zero", "/dev/null", "builtins:dict", "os:system",
    ":", "x:", "a b", "json:loads", "json:JSONDecoder", "--topology", "v5e:2x2", "4xh100", "local",
    "cpu:4", "99999xh100", "v5e:0x0", "v5e:9999999x9", "--mesh", "auto", "data=4", "data=2,model=2",
    "data=-1", "data=,", "=", "--pin", "*=null", "*" * 40, "[0]=data,null", "a" * 5000, "--arg",
    "x=1", "x=1e999", "--memory-limit", "nan", "-1", "1e-300", "inf", "--seed", "-5", str(10**30),
    "--strategy", "exact", "mcmc", "beam", "--preset", "zero-3", "megatron", "--space", "pipeline",
    "hybrid", "--stages", "2", "0", "--microbatches", "1000000000", "auto", "--rule", "f=ik,kj->ij",
    "f=((", "--layers", "apart", "--strict", "--json", "--profile", "--trace", "-o", "/dev/full",
    "/nowhere/x", "--budget", "0", "--compiler", "tpu", "--help", "--version", "--", "-", "",
    "\x1b[31m", "[0]", "--verify", "--target", "--timeout", "1e-9",
)  # fmt: skip


def _words(random: Random) -> bytes:
    started = {
        "plan": ["plan", "PROGRAM", "--topology", "4xh100"],
        "compare": ["compare", "PROGRAM", "--topology", "v5e:2x2"],
        "explain": ["explain", "PLAN"],
        "simulate": ["simulate", random.choice(("PLAN", "PIPELINE"))],
        "verify": ["verify", "PLAN"],
    }
    name = random.choice(_COMMANDS)
    words = list(started.get(name, [name]))
    for _ in range(random.randrange(4)):
        match random.randrange(4):
            case 0 if len(words) > 1:
                words[random.randrange(1, len(words))] = random.choice(_WORDS)
            case 1 if len(words) > 1:
                del words[random.randrange(1, len(words))]
            case 2:
                words.append(str(random.choice(NUMBERS)))
            case _:
                words.insert(random.randrange(1, len(words) + 1), random.choice(_WORDS))
    return json.dumps(words).encode()


def _of_texts(texts: Callable[[], Sequence[str]]) -> Callable[[Random], bytes]:
    def make(random: Random) -> bytes:
        changed = several(random, random.choice(texts()), changed_text)
        return changed.encode("utf-8", "surrogatepass")

    return make


def _of_bytes(
    seeds_of: Callable[[], Sequence[bytes]], change: Callable[[Random, bytes], bytes]
) -> Callable[[Random], bytes]:
    return lambda random: several(random, random.choice(seeds_of()), change)


def _of_json(values: Callable[[], Sequence[Any]]) -> Callable[[Random], bytes]:
    def make(random: Random) -> bytes:
        return json_text(random, several(random, random.choice(values()), changed_json))

    return make


def _proto(random: Random, data: bytes) -> bytes:
    return changed_bytes(random, data) if random.randrange(10) == 0 else changed_proto(random, data)


def _zipped(random: Random) -> bytes:
    """A program, changed or not, and compressed, changed or not."""
    whole = random.choice((*seeds.protos(), *(t.encode() for t in seeds.hlo_texts())))
    inner = several(random, whole, changed_bytes) if random.randrange(2) else whole
    if random.randrange(50) == 0:
        inner += bytes(2**25)
    packed = gzip.compress(inner, mtime=0)
    return several(random, packed, changed_bytes) if random.randrange(2) else packed


def _toml(random: Random) -> bytes:
    table = random.choice(seeds.topologies())
    if random.randrange(2):
        try:
            return tomli_w.dumps(several(random, table, changed_json)).encode()
        except (TypeError, ValueError, AttributeError):
            pass
    text = several(random, tomli_w.dumps(dict(table)), changed_text)
    return text.encode("utf-8", "surrogatepass")


def _safetensors(seeds_of: Callable[[], Sequence[bytes]]) -> Callable[[Random], bytes]:
    """The header's JSON is changed, or the bytes."""

    def make(random: Random) -> bytes:
        whole = random.choice(seeds_of())
        if random.randrange(3) == 0:
            return several(random, whole, changed_bytes)
        end = 8 + int.from_bytes(whole[:8], "little")
        header = json_text(random, several(random, json.loads(whole[8:end]), _header))
        return len(header).to_bytes(8, "little") + header + whole[end:]

    return make


def _header(random: Random, header: Any) -> Any:
    types = ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F64", "I8", "BOOL", "U64", "F4", "C64")
    rows = (
        [row for row in header.values() if isinstance(row, dict) and "dtype" in row]
        if isinstance(header, dict)
        else []
    )
    if rows and random.randrange(3) == 0:
        random.choice(rows)["dtype"] = random.choice(types)
        return header
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if (
        isinstance(metadata, dict)
        and isinstance(metadata.get("scalars"), str)
        and random.randrange(3) == 0
    ):
        try:
            scalars = changed_json(random, json.loads(metadata["scalars"]))
            metadata["scalars"] = json_text(random, scalars).decode("utf-8", "replace")
        except (ValueError, RecursionError):  # changed before
            pass
        return header
    return changed_json(random, header)


FORMATS: Final[dict[str, Format]] = {
    "HLO text": Format(_of_texts(seeds.hlo_texts), _planned),
    "HLO proto": Format(_of_bytes(seeds.protos, _proto), _planned),
    "gzip of HLO": Format(_zipped, _planned),
    "StableHLO text": Format(_of_texts(seeds.stablehlo_texts), _planned),
    "StableHLO bytecode": Format(_of_bytes(seeds.stablehlo_bytecodes, changed_bytes), _planned),
    "plan": Format(_of_json(seeds.plans), _plan_file),
    "topology": Format(_toml, _topology_file),
    "profile": Format(_of_json(seeds.profiles), _profile),
    "agent's weights": Format(_safetensors(seeds.weights), _loaded(_load_weights)),
    "checkpoint": Format(_safetensors(seeds.checkpoints), _loaded(_load_agent)),
    "witness": Format(_of_json(seeds.witnesses), _witness),
    "answer of stages": Format(_of_json(seeds.answers), _answer),
    "prices of kernels": Format(_of_json(seeds.kernel_prices), _kernel_prices),
    "prices of machines": Format(_of_texts(lambda: seeds.MACHINE_PRICES), _loaded(read_prices)),
    "degrees": Format(_of_texts(lambda: seeds.DEGREES), _degrees),
    "plan cache": Format(_of_json(seeds.plans), _plan_entry),
    "command line": Format(_words, _command_line),
}
