"""Shardy's own sharding rules, from the passes of the installed jaxlib, in our algebra.

The pass is no stable API, so `rules_of` returns None where this jaxlib does not have it.
"""

import re
import string

import jax

from hlo_tools.rules import FactorKind, Rule


try:
    from jaxlib.mlir import passmanager  # noqa: TID251 - an oracle, probed
except ImportError:
    passmanager = None

_PIPELINE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
_RULE = re.compile(r"<\((?P<left>.*)\)->\((?P<right>.*?)\)(?: \{(?P<sizes>.*?)\})?(?P<kinds>.*)>")
_KINDS = {"reduction": "reduce", "permutation": "permute", "need_replication": "replicate"}
_FACTOR = re.compile(r"[a-z](?:_\d+)?")
# Ours -> StableHLO's, where the names differ by more than a dash.
_NAMES = {
    "dot": "dot_general",
    "broadcast": "broadcast_in_dim",
    "topk": "top_k",
    "conditional": "case",
}


def shardy_rules(function, arguments, opcode):
    """Rules as algebra of the ops that lower to `opcode`; None if there is no such pass."""
    if passmanager is None:
        return None
    module = jax.jit(function, keep_unused=True).lower(*arguments).compiler_ir("stablehlo")
    try:
        with module.context:
            passmanager.PassManager.parse(_PIPELINE).run(module.operation)
    except ValueError:
        return None
    name = _NAMES.get(opcode, opcode.replace("-", "_"))
    return [_algebra(rule) for op, rule in _walk(module.operation) if op.partition(".")[2] == name]


def comparable(rule):
    """Our rule as algebra, with dimensions that only one tensor has and that stay whole written as
    size one.
    """
    tensors = (*rule.operands, *rule.results)
    places = [f for tensor in tensors for dim in tensor for f in dim]
    whole = {
        n
        for n, factor in enumerate(rule.factors)
        if factor.kind is FactorKind.REPLICATION and places.count(n) == 1
    }
    order = {f: n for n, f in enumerate(dict.fromkeys(f for f in places if f not in whole))}
    sides = [
        tuple(tuple(tuple(order[f] for f in d if f in order) for d in t) for t in side)
        for side in (rule.operands, rule.results)
    ]
    return str(Rule(tuple(rule.factors[f] for f in order), *sides))


def _walk(operation):
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                attributes = op.operation.attributes
                if "sdy.sharding_rule" in attributes:
                    yield op.operation.name, str(attributes["sdy.sharding_rule"])
                yield from _walk(op.operation)


def _algebra(text):
    """`([i, jk])->([ij, k]) {i=2, j=3, k=4} reduction={k}` as `a(bc)->(ab)c reduce=c`.

    What stands in one place and is replicated or permuted, or is a custom call's, stays whole: size
    one.
    """
    rule = _RULE.search(text)
    pairs = (pair.split("=") for pair in (rule["sizes"] or "").split(", ") if pair)
    sizes = {name: int(size) for name, size in pairs}
    places = _FACTOR.findall(rule["left"] + rule["right"])
    lists = re.findall(r"(?:need_replication|permutation)=\{(.*?)\}", rule["kinds"])
    whole = places if text.endswith("custom>") else _FACTOR.findall(" ".join(lists))
    sizes |= {f: 1 for f in whole if places.count(f) == 1}
    letter = {}

    def dim(factors):
        names = [f for f in _FACTOR.findall(factors) if sizes[f] > 1]
        new = [letter.setdefault(f, string.ascii_letters[len(letter)]) for f in names]
        return new[0] if len(new) == 1 else f"({''.join(new)})" if new else "1"

    def side(tensors):
        inner = re.findall(r"\[(.*?)\]", tensors)
        return ",".join("".join(map(dim, t.split(", "))) if t else "." for t in inner)

    result = side(rule["left"]) + "->" + side(rule["right"])
    for theirs in ("reduction", "permutation", "need_replication"):
        kind = re.search(rf"{theirs}=\{{(.*?)\}}", rule["kinds"])
        names = sorted(letter[f] for f in _FACTOR.findall(kind[1]) if f in letter) if kind else []
        if names:
            result += f" {_KINDS[theirs]}={','.join(names)}"
    return result
