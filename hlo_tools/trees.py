"""Nested tuples of value ids, and the names of what is inlined: what flattening passes around."""

Tree = int | tuple["Tree", ...]


def joined(prefix: str, name: str) -> str:
    """The name of an op inside a call: the caller's before its own."""
    # Names inside a callee are relative in some JAX versions and whole in others.
    if not prefix or name.startswith(prefix):
        return name or prefix
    return f"{prefix}/{name}" if name else prefix


def flat_leaves(trees: list[Tree]) -> tuple[int, ...]:
    """The value ids of all trees, in order."""
    if tuple not in map(type, trees):
        return tuple(trees)  # pyright: ignore[reportReturnType]
    return tuple(leaf for tree in trees for leaf in leaves(tree))


def leaves(tree: Tree) -> list[int]:
    """The value ids of one tree, in order."""
    if isinstance(tree, int):
        return [tree]
    return [leaf for part in tree for leaf in leaves(part)]
