"""For the API reference: functions whose options are described in `automap.config` are shown with
the signature and the docstring that they have when they run, as `help` shows them.

Everything else griffe reads from the code without running it. `mkdocs.yml` names this file.
"""

from typing import Any, Final

import griffe


DECORATOR: Final = "with_options("


class OptionsInSignatures(griffe.Extension):
    """Shows what `automap.api.keywords.with_options` makes of a function."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Put the parameters and the docstring of the running function in place of those read."""
        # Importing what is documented is slow, so only these functions are looked at as they run.
        if not any(str(decorator.value).startswith(DECORATOR) for decorator in func.decorators):
            return
        running = griffe.inspect(func.module.path)[func.name]
        func.parameters = running.parameters
        if func.docstring is not None and running.docstring is not None:
            func.docstring.value = running.docstring.value
