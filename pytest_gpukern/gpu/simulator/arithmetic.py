"""Gives the arithmetic of simulated functions the types that Numba's compiler gives it.

NumPy wraps where Numba widens: uint8 + uint8 is uint8 there, and uint64 here. Python's own numbers give way
to NumPy's (NEP 50), and are int64 and float64 here. So we compile a copy of each function whose operators,
calls and stores go through `_Rules`, `unary`, `called` and `Into`. They follow the rules of
`numba/core/typing/builtins.py`, which numba-cuda has as well. A variable has the type of its last value.
"""

from __future__ import annotations
import __future__

import ast
import cmath
import copy
import functools
import linecache
import math
import operator
import warnings
from collections.abc import Callable
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import numpy as np
from greenlet import getcurrent

_WIDE: dict[type, type[np.integer[Any]]] = {
    **dict.fromkeys((bool, np.bool_, int, np.int8, np.int16, np.int32, np.int64, np.longlong), np.int64),
    **dict.fromkeys((np.uint8, np.uint16, np.uint32, np.uint64, np.ulonglong), np.uint64),
}
"""Type of a whole number → the type in which Numba computes with it."""
_BOOLEANS = {bool, np.bool_}
_BEYOND_FLOAT32 = _WIDE.keys() - {bool, np.bool_, np.int8, np.uint8, np.int16}
"""Whole numbers with which a float32 becomes float64."""
_WIDER = {np.float16: np.float64, np.float32: np.float64, np.complex64: np.complex128}
"""Type of a narrow number → what it becomes with one of those."""
_REAL = (int, float, np.integer, np.floating, np.bool_)
_TYPED: dict[type, Callable[[Any], Any]] = {float: np.float64, complex: np.complex128}
Binary = Callable[[Any, Any], Any]
ROUNDS = 100
"""Rounds of `while` loops after which other threads go on; as many turns of these, and other blocks go on."""


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
            if left in (np.float16, np.float32) and right in _WIDE and operate is operator.pow:
                return lambda x, y: operate(np.float32(x), int(y))
            narrow = _WIDER.keys() & {left, right}
            if narrow and not _BEYOND_FLOAT32.isdisjoint((left, right)):
                return self._in(_WIDER[narrow.pop()])
            widens = operate in (operator.floordiv, operator.mod, operator.pow) or np.uint8 in (left, right)
            if widens and np.float16 in narrow and {left, right} <= {np.float16, *_WIDE}:
                return self._in(np.float32)
            if left in _TYPED or right in _TYPED:
                return lambda x, y: operate(_TYPED.get(left, _same)(x), _TYPED.get(right, _same)(y))
            return operate  # of records, texts and the like as well
        if operate is operator.truediv:
            return self._in(np.float64)
        if left is right is int and operate is not operator.pow:
            return self._of_pythons
        if {left, right} <= _BOOLEANS and operate in (operator.and_, operator.or_, operator.xor):
            return operate
        shifts = operate in (operator.lshift, operator.rshift)  # the shifted number alone decides
        kind = wide[0] if shifts or wide[0] is np.int64 else wide[1]
        return operate if left is right is kind else self._in(kind)

    def _in(self, kind: Any) -> Binary:
        def convert(left: Any, right: Any) -> Any:
            try:
                return self.operate(kind(left), kind(right))
            except OverflowError:  # a number of Python's beyond int64 is a uint64
                return self.apply(np.asarray(left)[()], np.asarray(right)[()])
            except ValueError:  # a whole number to the power of a negative one
                return kind(left) ** abs(kind(right)) if abs(left) == 1 else kind(0)

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


def fitting(value: Any, dtype: Any) -> Any:
    """Returns a value as whole numbers of a dtype are stored: cut to its width, and toward zero."""
    if getattr(dtype, "kind", "") not in ("i", "u") or getattr(value, "dtype", None) == dtype:
        return value
    return np.asarray(value).astype(dtype)[()] if isinstance(value, _REAL) else value


class Into:
    """Stands for an array or a record that something is stored into."""

    def __init__(self, owner: Any) -> None:
        vars(self)["owner"] = owner

    def __setitem__(self, index: Any, value: Any) -> None:
        owner = vars(self)["owner"]
        dtype = getattr(owner, "dtype", None)
        if isinstance(index, str):  # a field of a record
            dtype = (getattr(dtype, "fields", None) or {}).get(index, [None])[0]
        owner[index] = fitting(value, dtype)

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(getattr(vars(self)["owner"], "dtype", None), "fields", None):
            self[name] = value
        else:
            setattr(vars(self)["owner"], name, value)


def at(owner: Any, index: Any) -> tuple[Any, Any, Any]:
    """Returns where `owner[index] += value` stores, and what is there before `value` is computed."""
    return owner, index, owner[index]


def update(operate: Callable[[Any, Any], Any], place: tuple[Any, Any, Any], value: Any) -> None:
    """Does `owner[index] += value`, or the like with another operator."""
    owner, index, before = place
    Into(owner)[index] = operate(before, value)


def count_round() -> None:
    """Counts a round of a `while` loop, and lets other threads go on after many."""
    thread = getcurrent()
    try:
        thread.rounds += 1
    except AttributeError:  # not in a kernel
        return
    if thread.rounds % ROUNDS == 0:
        thread.pause()


def called(function: Any) -> Any:
    """Returns what a GPU runs where a kernel calls this function."""
    return _calls().get(id(function), function)


@functools.cache
def _calls() -> dict[int, Callable[..., Any]]:
    """The identity of a function → what stands for it: casts that wrap, `math` without exceptions."""
    from numba import types as numbas
    from numba.cuda import types

    def cast(kind: type[np.integer[Any]], rounded: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
        def to_kind(value: Any = 0, *more: Any) -> Any:
            if more or not isinstance(value, _REAL):
                return (round if rounded is np.rint else kind)(value, *more)
            return fitting(rounded(value) if rounded else value, np.dtype(kind))

        return to_kind

    def quiet(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            if not all(isinstance(value, _REAL) for value in values):  # NumPy's, of complex numbers
                return function(*values)
            kinds = set(map(type, values))
            kind: Any = np.float32 if kinds <= {np.float16, np.float32} else np.float64
            if kinds == {np.float16} and name in _IN_HALF:
                kind = np.float16
            try:
                return kind(function(*map(kind, values)))
            except (OverflowError, ValueError) as error:  # too large, at a pole, or of -inf
                pole = name == "lgamma" or (not values[0] and name != "remainder")
                return kind(math.inf if pole or isinstance(error, OverflowError) else math.nan)

        return call

    def of_complex(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            kind = np.result_type(np.complex64, *map(type, values)).type
            return function(*map(kind, values))

        return call

    def extreme(pick: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            among = values if len(values) > 1 else [*values[0]]
            kinds = set(map(type, among))
            if options or kinds == {int} or not all(issubclass(kind, _REAL) for kind in kinds):
                return pick(among, **options)
            typed = [*map(np.result_type(*kinds).type, among)]
            if len(values) == 2 and kinds <= _TO_PTX:  # which returns the number, and orders the zeros
                numbers = [value for value in typed if value == value] or typed
                return pick(numbers, key=lambda value: (value, math.copysign(1, value)))
            return pick(typed)

        return call

    add, floordiv, mod = (
        _Rules(operate).apply for operate in (operator.add, operator.floordiv, operator.mod)
    )
    to_int = cast(np.int64)
    stand_ins: dict[Any, Callable[..., Any]] = {
        int: lambda *value: value[0] if value and isinstance(value[0], np.integer) else to_int(*value),
        sum: lambda values, start=0: functools.reduce(add, values, start),
        divmod: lambda left, right: (floordiv(left, right), mod(left, right)),
        round: cast(np.int64, np.rint),
        **{pick: extreme(pick) for pick in (max, min)},
        cmath.log: of_complex(lambda *values: functools.reduce(operator.truediv, map(np.log, values))),
        cmath.log10: of_complex(np.log10),
        cmath.phase: of_complex(np.angle),
        cmath.polar: of_complex(lambda z: (abs(z), np.angle(z))),
        cmath.rect: of_complex(lambda length, angle: length.real * np.exp(angle * 1j)),
        **{getattr(cmath, name): of_complex(getattr(np, name)) for name in _CMATH},
        range: lambda *limits: range(*map(int, limits)),  # also of floats, as `math.floor` returns them
        float: lambda *value: value[0] if isinstance(value[0], np.floating) else np.float64(*value),
        pow: _Rules(operator.pow).apply,
        math.ldexp: np.ldexp,
        math.remainder: quiet(math.remainder, "remainder"),  # NumPy's is another
    }
    for name in _MATH:  # NumPy's make float16 of int8
        call = quiet(getattr(np, name, getattr(math, name)), name)
        stand_ins |= {getattr(owner, name): call for owner in (math, np) if hasattr(owner, name)}
    calls = {id(function): other for function, other in stand_ins.items()}
    for kind in _WIDE.keys() - {bool, int, np.bool_}:
        calls |= {id(getattr(owner, kind.__name__)): cast(kind) for owner in (np, types, numbas)}
    return calls


_MATH = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "pow", "fmod", "hypot", "fabs", "copysign"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "erfc", "gamma", "lgamma", "exp2", "degrees"),
    *("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "floor", "ceil", "trunc", "radians"),
)
_CMATH = ("exp", "sqrt", *(a + f + h for a in ("", "a") for f in ("sin", "cos", "tan") for h in ("", "h")))
_IN_HALF = {"exp", "exp2", "log", "log2", "log10", "sqrt", "sin", "cos", "fabs", "floor", "ceil", "trunc"}
"""Functions of which Numba makes a float16 of a float16; of others a float32."""
_TO_PTX = {float, np.float32, np.float64}
"""Types of two numbers of which `max` and `min` are one instruction; of others they compare."""
_CALLED = {"ldexp", "remainder", "phase", "polar", "rect", *_MATH, *(kind.__name__ for kind in _WIDE)}
_BINARY = (
    {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv"}
    | {ast.Mod: "mod", ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift"}
    | {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}
)
_UNARY = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}
_PREFIX = "_gpukern_"
_HELPERS: dict[str, Any] = {
    **{_PREFIX + node.__name__: _Rules(getattr(operator, name)).apply for node, name in _BINARY.items()},
    **{_PREFIX + node.__name__: partial(unary, getattr(operator, name)) for node, name in _UNARY.items()},
    **{_PREFIX + helper.__name__: helper for helper in (Into, at, update, called, count_round)},
}
"""Free variable of a compiled copy → its value."""


def _call(helper: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_PREFIX + helper, ast.Load()), [*arguments], [])


class _Typed(ast.NodeTransformer):
    """Puts calls of the helpers in place of operators."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if _is_constant(node):  # Python computes it before anybody compiles it
            return node
        self.generic_visit(node)
        return _call(type(node.op).__name__, node.left, node.right) if type(node.op) in _BINARY else node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if _is_constant(node) or isinstance(node.op, ast.Not):
            return self.generic_visit(node)  # type: ignore[return-value]
        self.generic_visit(node)
        return _call(type(node.op).__name__, node.operand)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) or getattr(node.func, "attr", "") in _CALLED:
            node.func = _call("called", node.func)
        return node

    def visit_Attribute(self, node: Any) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Store):
            node.value = _call("Into", node.value)
        return node  # type: ignore[no-any-return]

    visit_Subscript = visit_Attribute  # noqa: N815 - as `ast` names it

    def visit_While(self, node: ast.While) -> ast.stmt:
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call("count_round")))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target, index = node.target, getattr(node.target, "slice", None)
        parts = (index, *getattr(index, "elts", ()))
        if type(node.op) not in _BINARY or any(isinstance(part, ast.Slice) for part in parts):
            node.value = self.visit(node.value)
            return node
        operate = ast.Name(_PREFIX + type(node.op).__name__, ast.Load())
        if isinstance(target, ast.Subscript):
            place = _call("at", self.visit(target.value), self.visit(target.slice))
            return ast.Expr(_call("update", operate, place, self.visit(node.value)))
        now = copy.deepcopy(target)
        now.ctx = ast.Load()
        value = ast.Call(operate, [self.visit(now), self.visit(node.value)], [])
        return ast.Assign([self.visit(target)], value)


def _is_constant(node: ast.expr) -> bool:
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(part, kinds) for part in ast.walk(node))


def typed_as_on_a_gpu(function: Any) -> Any:
    """Returns a copy of a function that computes with the types of a GPU; its literals, such as 0.5, as well.

    Without a source that `linecache` has, as of `exec`, only literals become NumPy's float64.
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

    linecache.checkcache(filename)
    with warnings.catch_warnings(action="ignore"):  # Python warned when it compiled the file, as of "\\d"
        functions, codes = _functions_of("".join(linecache.getlines(filename)))
        for node in functions:
            if _is_source(node, codes, code):
                code = _compiled(_Typed().visit(copy.deepcopy(node)), code)
                break
    return code.replace(co_consts=literal(code.co_consts))


@functools.cache
def _functions_of(text: str) -> tuple[list[Any], set[CodeType]]:
    """Returns the functions of a file, and all code that is compiled from it."""
    try:
        parsed, codes = ast.parse(text), [compile(text, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):  # a cell of IPython with magics
        return [], set()
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    return [node for node in ast.walk(parsed) if isinstance(node, (ast.FunctionDef, ast.Lambda))], set(codes)


def _is_source(node: Any, codes: set[CodeType], code: CodeType) -> bool:
    """Returns whether this is a code's function; pytest rewrites the assertions of a test's."""
    decorators = getattr(node, "decorator_list", ())
    line = min((each.lineno for each in decorators), default=node.lineno)
    if (line, getattr(node, "name", "<lambda>")) != (code.co_firstlineno, code.co_name):
        return False
    if isinstance(node, ast.Lambda):  # several may be on one line
        starts = [(line, column) for line, _, column, end in code.co_positions() if line and column and end]
        if min(starts, default=None) != (node.body.lineno, node.body.col_offset):
            return False
    # The whole code, since a constant that has changed on disk leaves the instructions alike.
    return code in codes or any(isinstance(part, ast.Assert) for part in ast.walk(node))


def _compiled(inner: Any, code: CodeType) -> CodeType:
    """Compiles a function's source inside a function that has its free variables."""
    inner.decorator_list = inner.args.defaults = []
    inner.args.kw_defaults = [None] * len(inner.args.kwonlyargs)
    outer: Any = ast.parse(f"def outer({', '.join((*code.co_freevars, *_HELPERS))}): pass")
    outer.body[0].body = [inner if isinstance(inner, ast.stmt) else ast.Expr(inner)]
    futures = code.co_flags & __future__.annotations.compiler_flag
    made: Any = compile(
        ast.fix_missing_locations(outer), code.co_filename, "exec", futures, dont_inherit=True
    )
    for name in ("outer", code.co_name):
        made = next(each for each in made.co_consts if isinstance(each, CodeType) and each.co_name == name)
    compiled: CodeType = made.replace(co_qualname=code.co_qualname)
    return compiled
