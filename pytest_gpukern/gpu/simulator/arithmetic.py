"""Gives the arithmetic of simulated functions the types that Numba's compiler gives it.

NumPy wraps where Numba widens: uint8 + uint8 is uint8 there, and uint64 here. Python's own numbers give way
to NumPy's (NEP 50), and are int64 and float64 here. So we compile a copy of each function whose operators,
calls and stores go through `_Rules`, `unary`, `called` and `stored`. The rules are those of
`numba/core/typing/builtins.py`, which numba-cuda has as well. A variable has the type of its last value.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import math
import operator
from collections.abc import Callable
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np

_WIDE: dict[type, type[np.integer[Any]]] = {
    **dict.fromkeys((bool, np.bool_, int, np.int8, np.int16, np.int32, np.int64, np.longlong), np.int64),
    **dict.fromkeys((np.uint8, np.uint16, np.uint32, np.uint64, np.ulonglong), np.uint64),
}
"""Type of a whole number → the type in which Numba computes with it."""
_BOOLEANS = {bool, np.bool_}
_BEYOND_FLOAT32 = _WIDE.keys() - {bool, np.bool_, np.int8, np.uint8, np.int16}
"""Whole numbers with which a float32 becomes float64."""
_TYPED: dict[type, Callable[[Any], Any]] = {float: np.float64, complex: np.complex128}
Binary = Callable[[Any, Any], Any]


class _Rules(dict[tuple[type, type], Binary]):
    """Types of two operands → what computes an operator of them on a GPU."""

    def __init__(self, operate: Binary) -> None:
        super().__init__()
        self.operate = operate

    def __missing__(self, kinds: tuple[type, type]) -> Binary:
        self[kinds] = self._rule(*kinds)
        return self[kinds]

    def apply(self, left: Any, right: Any) -> Any:
        return self[type(left), type(right)](left, right)

    def _rule(self, left: type, right: type) -> Binary:
        operate, wide = self.operate, (_WIDE.get(left), _WIDE.get(right))
        if None in wide:
            if left is np.float32 and right in _WIDE and operate is operator.pow:
                return lambda x, y: operate(x, int(y))  # a float32
            if np.float32 in (left, right) and not _BEYOND_FLOAT32.isdisjoint((left, right)):
                return self._converting(np.float64, np.float64)
            if left in _TYPED or right in _TYPED:
                return self._converting(_TYPED.get(left, _same), _TYPED.get(right, _same))
            return operate  # of records, texts and the like as well
        if operate is operator.truediv:
            return self._converting(np.float64, np.float64)
        if left is right is int and operate is not operator.pow:
            return self._of_pythons
        if {left, right} <= _BOOLEANS and operate in (operator.and_, operator.or_, operator.xor):
            return operate
        shifts = operate in (operator.lshift, operator.rshift)  # the shifted number alone decides
        kind = wide[0] if shifts or wide[0] is np.int64 else wide[1]
        return operate if left is right is kind else self._converting(kind, kind)

    def _converting(self, to_left: Any, to_right: Any) -> Binary:
        def convert(left: Any, right: Any) -> Any:
            try:
                return self.operate(to_left(left), to_right(right))
            except OverflowError:  # a number of Python's beyond int64 is a uint64
                return self.apply(np.asarray(left)[()], np.asarray(right)[()])

        return convert

    def _of_pythons(self, left: int, right: int) -> Any:
        try:
            result = self.operate(left, right)
        except ZeroDivisionError:  # NumPy divides as a GPU does
            return self.operate(np.int64(left), np.int64(right))
        return result if -(2**63) <= result < 2**63 else np.uint64(result % 2**64).astype(np.int64)


def _same(value: Any) -> Any:
    return value


def unary(operate: Callable[[Any], Any], value: Any) -> Any:
    """Returns what an operator of one operand computes on a GPU: in the operand's own width, then widened."""
    if type(value) in _BOOLEANS:
        return not value if operate is operator.invert else operate(np.int64(value))
    result = operate(value)
    return _WIDE[type(value)](result) if isinstance(value, np.integer) else result


def stored(value: Any) -> Any:
    """Returns a value that an array takes: it cuts whole numbers of NumPy's to its width, not Python's."""
    return np.asarray(value)[()] if type(value) is int else value


def update(operate: Callable[[Any, Any], Any], owner: Any, index: Any, value: Any) -> None:
    """Does `owner[index] += value`, or the like with another operator."""
    owner[index] = stored(operate(owner[index], value))


def called(function: Any) -> Any:
    """Returns what a GPU runs where a kernel calls this function."""
    return _calls().get(id(function), function)


@functools.cache
def _calls() -> dict[int, Callable[..., Any]]:
    """The identity of a function → what stands for it: casts that wrap, and `math` without exceptions."""
    from numba import types as numbas
    from numba.cuda import types

    def to(kind: type[np.integer[Any]]) -> Callable[..., Any]:
        return lambda *value: kind(*map(stored, value))

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            single = all(type(value) is np.float32 for value in values)
            return function(*(values if single else map(np.float64, values)))

        return call

    found: dict[Any, Callable[..., Any]] = {
        int: lambda *value: value[0] if isinstance(value[0], np.integer) else int(*value),
        float: lambda *value: value[0] if isinstance(value[0], np.floating) else np.float64(*value),
        pow: _Rules(operator.pow).apply,
        **{getattr(math, name): of(getattr(np, name)) for name in _OF_NUMPY},
        **{getattr(math, name): of(_without_errors(getattr(math, name))) for name in _OF_PYTHON},
    }
    calls = {id(function): other for function, other in found.items()}
    for kind in _WIDE.keys() - {bool, int, np.bool_}:
        for owner in (np, types, numbas):
            calls[id(getattr(owner, kind.__name__))] = to(kind)
    return calls


_OF_NUMPY = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "pow", "fmod", "hypot", "fabs", "copysign"),
    *(
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
    ),
)
_OF_PYTHON = ("gamma", "lgamma", "erf", "erfc")
_CALLED = {"int", "float", "pow", *_OF_NUMPY, *_OF_PYTHON, *(kind.__name__ for kind in _WIDE)}


def _without_errors(function: Callable[[Any], float]) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        try:
            return type(value)(function(value))
        except OverflowError:
            return type(value)(math.inf)
        except ValueError:  # at a pole, or of -inf
            return type(value)(math.inf if function is math.lgamma or value == 0 else math.nan)

    return call


_BINARY = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "truediv": ast.Div,
    "floordiv": ast.FloorDiv,
    "mod": ast.Mod,
    "pow": ast.Pow,
    "lshift": ast.LShift,
    "rshift": ast.RShift,
    "and_": ast.BitAnd,
    "or_": ast.BitOr,
    "xor": ast.BitXor,
}
_UNARY = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert}
_PREFIX = "_gpukern_"
_HELPERS: dict[str, Any] = {
    **{_PREFIX + node.__name__: _Rules(getattr(operator, name)).apply for name, node in _BINARY.items()},
    **{_PREFIX + node.__name__: partial(unary, getattr(operator, name)) for name, node in _UNARY.items()},
    **{_PREFIX + helper.__name__: helper for helper in (stored, update, called)},
}
"""Free variable of a compiled copy → its value."""


def _call(helper: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_PREFIX + helper, ast.Load()), [*arguments], [])


class _Typed(ast.NodeTransformer):
    """Puts calls of the helpers in place of operators."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        known = type(node.op) in _BINARY.values()
        return _call(type(node.op).__name__, node.left, node.right) if known else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        plain = isinstance(node.op, ast.Not) or isinstance(node.operand, ast.Constant)
        return node if plain else _call(type(node.op).__name__, node.operand)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CALLED:
            node.func = _call("called", node.func)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        if any(isinstance(target, ast.Subscript) for target in node.targets):
            node.value = _call("stored", node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        target, operate = node.target, ast.Name(_PREFIX + type(node.op).__name__, ast.Load())
        if isinstance(target, ast.Subscript):
            if any(isinstance(part, ast.Slice) for part in ast.walk(target.slice)):
                return node
            return ast.Expr(_call("update", operate, target.value, target.slice, node.value))
        now = copy.deepcopy(target)
        now.ctx = ast.Load()
        return ast.Assign([target], ast.Call(operate, [now, node.value], []))


def typed_as_on_a_gpu(function: Any) -> Any:
    """Returns a copy of a function that computes with the types of a GPU; its literals, such as 0.5, as well.

    Without its source, as of `exec`, only literals become NumPy's float64.
    """
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(helper) for name, helper in _HELPERS.items()}
    typed = _typed(code, code.co_filename)
    closure = tuple(cells[name] for name in typed.co_freevars)
    copied = FunctionType(typed, function.__globals__, None, function.__defaults__, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copied, function)


@functools.cache
def _typed(code: CodeType, filename: str) -> CodeType:
    def literal(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(literal, value))
        return np.float64(value) if type(value) is float else value

    place = code.co_firstlineno, code.co_name
    found = [node for node in ast.walk(_parsed(filename)) if _place(node) == place]
    if len(found) == 1:
        code = _compiled(found[0], code)
    return code.replace(co_consts=literal(code.co_consts))


@functools.cache
def _parsed(filename: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:  # a cell of IPython with magics
        return ast.Module([], [])


def _place(node: ast.AST) -> tuple[int, str] | None:
    if isinstance(node, ast.Lambda):
        return node.lineno, "<lambda>"
    if isinstance(node, ast.FunctionDef):
        return min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.name
    return None


def _compiled(node: Any, code: CodeType) -> CodeType:
    """Compiles a typed copy of a function's source, inside a function that has its free variables."""
    inner = _Typed().visit(copy.deepcopy(node))
    if isinstance(inner, ast.FunctionDef):
        inner.decorator_list = []
    body = [inner if isinstance(inner, ast.stmt) else ast.Expr(inner)]
    outer: Any = ast.parse(f"def outer({', '.join((*code.co_freevars, *_HELPERS))}): pass")
    outer.body[0].body = body
    made = compile(ast.fix_missing_locations(outer), code.co_filename, "exec")
    for name in ("outer", code.co_name):
        made = next(each for each in made.co_consts if isinstance(each, CodeType) and each.co_name == name)
    return made.replace(co_qualname=code.co_qualname)
