"""Reads constants from source text without executing anything."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}


def constant(node: ast.expr) -> Any:
    """Returns the value of a literal or arithmetic on literals, as `10**8` or `(1, 2)`; else ValueError."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = constant(node.left), constant(node.right)
        if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            raise ValueError("arithmetic on something that is not a number")
        if isinstance(node.op, ast.Pow) and (abs(right) > 64 or abs(left) > 1 << 32):
            raise ValueError("a power too large to be meant")
        try:
            return _ARITHMETIC[type(node.op)](left, right)
        except ArithmeticError as error:
            raise ValueError(f"arithmetic without a result: {error}") from error
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(constant(element) for element in node.elts)
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        if len(keys) < len(node.keys):
            raise ValueError("a dictionary unpacked into another")
        return {constant(key): constant(value) for key, value in zip(keys, node.values, strict=True)}
    return ast.literal_eval(node)
