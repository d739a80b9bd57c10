"""What a plan says of its compiler: that its costs are of another version, and which operations of
the step it is known to run much longer than is predicted.
"""

from collections.abc import Iterator

from automap.backends import Backend, version_warnings
from automap.jaxpr.sites import parse_site
from automap.program.trace import Workload


def backend_warnings(backend: Backend, workload: Workload) -> tuple[str, ...]:
    """Of a workload that is planned for a backend; one for each place in the code."""
    return (*version_warnings(backend), *dict.fromkeys(_unpriced(backend, workload)))


def _unpriced(backend: Backend, workload: Workload) -> Iterator[str]:
    graph = workload.problem.graph
    sources = {} if workload.reemitter is None else workload.reemitter.source_by_path
    for index, sentence in backend.unpriced(graph):
        name = graph.ops[index].op_name
        where = sources.get(parse_site(name) or "", "") or name or graph.ops[index].opcode
        yield f"{where}: {sentence}"
