"""What `automap advise` is asked: machines, batches, prices and rates, from what people write.

Machines are those of the catalogue that meet every condition of a text, parted by commas:

    fit         condition {, condition}                            "gpus<=64, h100|a100, memory>=40"
    condition   quantity comparison number  |  name {| name}
    quantity    devices, gpus (of GPU machines only), chips (of TPU slices only), memory (GB of a
                device)
    comparison  <, <=, =, >=, >
    name        a machine (8xh100, v5e:4x4), its device (h100, v5e), gpu or tpu

Batches are `64..4096`, each twice the one before, or a list `64,96,128`. Prices are a TOML file of
money for one device and hour, by machine or device:

    currency = "USD"
    [per_device_hour]
    h100 = 2.99
    "v5e:4x4" = 1.20

All errors are `InputError`s with what was got, what is allowed, and what to do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import math
import operator
from pathlib import Path
import re
import tomllib
from typing import Final

from automap.errors import InputError, TopologyError
from automap.topology import catalogue_machines, get_topology
from automap.topology.model import MAX_DEVICES, Topology
from hlo_tools.errors import FileError
from hlo_tools.files import read_file


DEFAULT_MOST_DEVICES: Final = 256
"""Of machines that are looked at, where no condition says how many."""
_MOST_BATCHES: Final = 64
_MOST_BYTES: Final = 2**20
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_QUANTITIES: Final = ("devices", "gpus", "chips", "memory")
_CONDITION: Final = re.compile(r"([a-z]+)\s*(<=|>=|<|>|=)\s*([0-9.eE+]{1,20})")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9:-]*")
_PLATFORMS: Final = {"gpu": "cuda", "tpu": "tpu"}


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine by its name, and the name of its GPU or TPU."""

    name: str
    kind: str
    topology: Topology

    @property
    def names(self) -> tuple[str, str]:
        """What a price may be given for, that of the whole machine first."""
        return self.name.lower(), self.kind.lower()

    def quantity(self, name: str) -> float | None:
        """One of the quantities of conditions; None where the machine has no such thing."""
        platform, devices = self.topology.platform, self.topology.device_count
        if name == "memory":
            return self.topology.device.memory_bytes / 1e9
        if name == "chips":
            # The dies of a chip are devices of their own.
            dies = next((level.size for level in self.topology.levels if level.name == "die"), 1)
            return devices / dies if platform == "tpu" else None
        return devices if name == "devices" or platform == "cuda" else None


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for one device and hour, by the name of a machine or of its device."""

    currency: str
    per_device_hour: Mapping[str, float] = field(hash=False)

    def per_hour(self, machine: Machine) -> float | None:
        """Of a whole machine; None where no price is known."""
        known = (self.per_device_hour.get(name) for name in machine.names)
        each = next((price for price in known if price is not None), None)
        return None if each is None else each * machine.topology.device_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a machine has to do in a second; 0 where nothing is asked."""

    tokens_per_second: float = 0.0
    samples_per_second: float = 0.0

    def __post_init__(self) -> None:
        """Raise `InputError` for what is no rate."""
        for name, rate in (
            ("tokens", self.tokens_per_second),
            ("samples", self.samples_per_second),
        ):
            if not (math.isfinite(rate) and rate >= 0):
                raise InputError(f"--{name}-per-second {rate}; allowed: a number of at least 0")

    @property
    def is_given(self) -> bool:
        """Whether a rate is asked for."""
        return bool(self.tokens_per_second or self.samples_per_second)


@dataclass(frozen=True, slots=True)
class _Comparison:
    quantity: str
    symbol: str
    number: float

    def holds(self, machine: Machine) -> bool:
        value = machine.quantity(self.quantity)
        return value is not None and _COMPARISONS[self.symbol](value, self.number)


@dataclass(frozen=True, slots=True)
class _AnyName:
    names: frozenset[str]

    def holds(self, machine: Machine) -> bool:
        platform = machine.topology.platform
        known = {machine.name, machine.kind}
        return bool(self.names & known) or any(_PLATFORMS.get(n) == platform for n in self.names)


Condition = _Comparison | _AnyName


def parse_fit(text: str) -> tuple[Condition, ...]:
    """The conditions of a text. Raises `InputError` for another form, `TopologyError` for unknown
    names.
    """
    return tuple(_condition(part.strip().lower()) for part in text.split(",")) if text else ()


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is not None:
        quantity, symbol, digits = match.groups()
        if quantity not in _QUANTITIES:
            raise _refused(text, f"a quantity of {', '.join(_QUANTITIES)}")
        return _Comparison(quantity, symbol, _number(text, digits))
    names = [name.strip() for name in text.split("|")]
    if not all(map(_NAME.fullmatch, names)):
        raise _refused(text, "conditions as gpus<=64, memory>=40 or h100|a100, parted by commas")
    known = {*_PLATFORMS, *catalogue_machines(DEFAULT_MOST_DEVICES).values()}
    for name in names:
        if name not in known:
            # The name of one machine, of any size; for what is none this says what is allowed.
            try:
                get_topology(name)
            except TopologyError as error:
                raise TopologyError(f"--fit: {str(error).removeprefix('topology: ')}") from error
    return _AnyName(frozenset(names))


def _number(text: str, digits: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _refused(text, "a finite number")
    return number


def _refused(text: str, allowed: str) -> InputError:
    return InputError(
        f"--fit: got {text[:80]!r}; allowed: {allowed}; `automap topologies` lists machines"
    )


def read_machines(names: Sequence[str], fit: str) -> tuple[Machine, ...]:
    """The named machines, else those of the catalogue, that meet the conditions; the fewest devices
    first.

    Raises `TopologyError` for an unknown name, `InputError` if none is left.
    """
    conditions = parse_fit(fit)
    machines = []
    for name in names or _catalogue(conditions):
        topology = get_topology(name)
        machines.append(Machine(topology.name, topology.device.name, topology))
    kept = [machine for machine in machines if all(c.holds(machine) for c in conditions)]
    if not kept:
        raise InputError(
            f"--fit {fit!r}: none of {len(machines)} machines meets it; {_alternatives(conditions)}"
            "leave a condition out, or name machines with --topology"
        )
    return tuple(sorted(kept, key=lambda machine: machine.topology.device_count))


def _alternatives(conditions: Sequence[Condition]) -> str:
    """How to ask for one name or another, where several are asked for at once."""
    named = [sorted(c.names) for c in conditions if isinstance(c, _AnyName)]
    if len(named) < 2:
        return ""
    either = "|".join(name for names in named for name in names)
    return f"a machine has to meet all of them, and alternatives are written as {either}; "


def _catalogue(conditions: Sequence[Condition]) -> tuple[str, ...]:
    """The machines of the catalogue that conditions may leave."""
    most = [
        # A chip of some generations is two devices.
        math.floor(c.number) * (2 if c.quantity == "chips" else 1)
        for c in conditions
        if isinstance(c, _Comparison) and c.quantity != "memory" and not c.symbol.startswith(">")
    ]
    bound = min(max(min(most), 0), MAX_DEVICES) if most else DEFAULT_MOST_DEVICES
    machines = catalogue_machines(bound)
    named = [n for c in conditions if isinstance(c, _AnyName) for n in sorted(c.names)]
    # A machine that is named whole is looked at whatever its size.
    kinds = {*_PLATFORMS, *catalogue_machines(DEFAULT_MOST_DEVICES).values()}
    return tuple(dict.fromkeys((*machines, *(n for n in named if n not in kinds))))


def read_batches(text: str) -> tuple[int, ...]:
    """The batches of `64..4096` or `64,96`, ascending; none of an empty text.

    Raises `InputError` for another form.
    """
    if not text:
        return ()
    first, dots, last = text.partition("..")
    if dots:
        least, most = _batch(text, first), _batch(text, last)
        if most < least:
            raise InputError(f"--batch {text!r}: the second number is the largest batch")
        return tuple(least << k for k in range((most // least).bit_length()))
    batches = sorted({_batch(text, part) for part in text.split(",")})
    if len(batches) > _MOST_BATCHES:
        raise InputError(f"--batch: {len(batches)} batches; allowed: at most {_MOST_BATCHES}")
    return tuple(batches)


def _batch(text: str, digits: str) -> int:
    stripped = digits.strip()
    if not (stripped.isdecimal() and stripped.isascii() and len(stripped) < 10 and int(stripped)):
        raise InputError(f"--batch {text[:80]!r}: expected 64..4096, or 64,96,128, or one number")
    return int(stripped)


def read_prices(path: str | Path, machines: Sequence[Machine] = ()) -> Prices:
    """A file of prices, of these machines and any of the catalogue.

    Raises `InputError` with the field for what is none.
    """
    where = f"--price {str(path)[:200]!r}"
    try:
        data = tomllib.loads(read_file(path, _MOST_BYTES).decode())
    except (FileError, ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: {error}; expected a TOML file as docs/how-to/choose-a-machine.md shows"
        ) from error
    currency, table = data.get("currency", ""), data.get("per_device_hour")
    if not isinstance(currency, str) or len(currency) > 20 or not currency.isprintable():
        raise InputError(f"{where}: currency: got {str(currency)[:40]!r}; allowed: a short text")
    if set(data) - {"currency", "per_device_hour"} or not isinstance(table, dict) or not table:
        raise InputError(
            f"{where}: allowed: currency, and a table [per_device_hour] of NAME = price"
        )
    for name, price in table.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not 0 <= price < math.inf:
            # In quotes is only what is in quotes there: a text that looks like a number is none.
            got = f"the text {price[:40]!r}" if isinstance(price, str) else str(price)[:40]
            raise InputError(
                f"{where}: per_device_hour.{name[:40]}: got {got}; allowed: a number of at least 0 "
                "without quotes, of money for one device and hour"
            )
    prices = {name.lower(): float(price) for name, price in table.items()}
    _check_are_machines(where, prices, machines)
    return Prices(currency, prices)


def _check_are_machines(where: str, names: Iterable[str], machines: Sequence[Machine]) -> None:
    """Refuse a price of nothing that there is: a wrong letter would leave a machine without one."""
    kinds = sorted({*catalogue_machines(DEFAULT_MOST_DEVICES).values()})
    known = {*kinds, *(name for machine in machines for name in machine.names)}
    for name in names:
        if name in known:
            continue
        try:
            if not _NAME.fullmatch(name):
                raise TopologyError("no name")
            # A machine of the catalogue, of any size.
            get_topology(name)
        except TopologyError as error:
            raise InputError(
                f"{where}: per_device_hour.{name[:40]}: no machine is called so; allowed: a device "
                f"({', '.join(kinds)}), a machine as 8xh100 or v5e:4x4, or one given as --topology"
            ) from error
