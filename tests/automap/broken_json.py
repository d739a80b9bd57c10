"""JSON values with one change somewhere, for tests of what reads them."""

import copy


ACTIONS = ("delete", "replace", "insert")


def places(node, path=()):
    """Paths of all nodes below a JSON value."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


def changed(data, path, action, junk):
    """A copy of `data` in which the node at `path` is deleted, replaced by `junk`, or given `junk`
    as a neighbour.
    """
    data = copy.deepcopy(data)
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    if action == "delete":
        del parent[path[-1]]
    elif action == "replace":
        parent[path[-1]] = junk
    elif isinstance(parent, list):
        parent.insert(path[-1], junk)
    else:
        parent[str(junk)[:20]] = junk
    return data
