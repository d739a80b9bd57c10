"""`automap degrees`: another program's configuration -> the options of `automap plan`."""

from automap.choices import OtherProgram
from automap.cli.run.target import hide_accelerators
from automap.errors import InputError
from automap.plan.codec import encode
from automap.plan.degrees import READERS, plan_options
from automap.terminal import say, say_json, say_result
from automap.topology import get_topology
from hlo_tools.errors import FileError
from hlo_tools.files import read_file


# A configuration is written by people; what is larger is none.
_MOST_BYTES = 2**22


def run(*, config: str, program: OtherProgram, topology: str, as_json: bool) -> None:
    """Print the words, and on stderr what they leave out."""
    if topology != "local":
        hide_accelerators()
    device_count = get_topology(topology).device_count
    try:
        text = read_file(config, _MOST_BYTES).decode("utf-8", errors="replace")
        degrees = READERS[program](text, device_count)
    except (FileError, InputError) as error:
        raise InputError(f"{config}: {error}") from error
    words, notes = plan_options(degrees)
    if as_json:
        say_json({"options": words, "degrees": encode(degrees), "notes": notes})
        return
    for note in notes:
        say(f"warning: {note}")
    say_result(" ".join(words))
