"""An extension of Griffe, for the Python reference of the docs: what a decorator makes of a function.

Griffe reads sources and runs nothing. The keywords and docstrings of functions decorated with
`with_options` are made when they are imported, so these are imported, and shown as
`inspect.signature` and `inspect.getdoc` have them. Named in `mkdocs.yml`.
"""

from importlib import import_module
import inspect
from typing import Any

import griffe


DECORATOR = "with_options"
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


class DecoratedFunctions(griffe.Extension):
    """Replaces what the source says of a decorated function by what the function says of itself."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Called for every function that Griffe reads."""
        if not any(DECORATOR in str(decorator.value) for decorator in func.decorators):
            return
        function = getattr(import_module(func.module.path), func.name)
        func.docstring = griffe.Docstring(
            inspect.getdoc(function) or "", parent=func, parser="google"
        )
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    parameter.name,
                    annotation=_text(parameter.annotation),
                    kind=_KINDS[parameter.kind],
                    default=None
                    if parameter.default is parameter.empty
                    else repr(parameter.default),
                )
                for parameter in inspect.signature(function).parameters.values()
            )
        )


def _text(annotation: Any) -> str | None:
    if annotation is inspect.Parameter.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
