"""Makes the inputs and the reference of a problem at a point, once for all variants."""

from __future__ import annotations

import functools
import hashlib
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from pytest_gpukern.arrays.compare import Tolerance, contents_of
from pytest_gpukern.problems.call_by_name import Point
from pytest_gpukern.problems.problem import Output, Problem
from pytest_gpukern.problems.soundness import hardly_varies, passes_lower_precision, passes_zeros, rounded
from pytest_gpukern.values.note import Note
from pytest_gpukern.values.result import Contents

CONTENTS = 3
"""Sets of inputs with different contents, for buffers in rotation; the last two differ in few elements."""
CHECK_SEEDS = 8
"""Runs that a statistical check is given."""
MOST_CORNERS = 256
"""Number of small points that we keep: corners, at which variants are checked besides their own point."""
_LARGE_BYTES = 2**30
_START = 1 << 16  # elements: where one in 32 differs, these tell


@dataclass(frozen=True)
class Dataset:
    """Holds one set of inputs with the expected outputs.

    Attributes:
        seed_offset: number of the set; if only one is timed, it is set 0.
        inputs: name → NumPy array or scalar; variants are given copies only.
        expected: reference of each output; None if the problem has only a statistical check.
        planted: input → flat index → special value at that place.
        seed: the seed of the whole run, or None for the seed of every run that records.
        digests: type of a workspace → the result of its `digest` for these inputs.
    """

    seed_offset: int
    inputs: dict[str, Any]
    specs: dict[str, Output]
    expected: dict[str, np.ndarray[Any, Any]] | None
    tolerances: dict[str, Tolerance]
    seed: int | None = None
    planted: dict[str, dict[int, float]] = field(default_factory=dict)
    digests: dict[type, dict[str, int]] = field(default_factory=dict, compare=False)

    @classmethod
    def make(
        cls,
        problem: Problem,
        point: Point,
        seed_offset: int,
        seed: int | None = None,
        inputs: dict[str, Any] | None = None,
    ) -> Dataset:
        """Computes the reference from inputs, by default drawn here, before anybody else holds them."""
        if inputs is None:
            inputs = problem.inputs(point, seed_offset, seed)
        specs, expected = problem.output_specs(point, inputs), problem.reference(point, inputs)
        return cls(seed_offset, inputs, specs, expected, problem.tolerances(specs, point), seed)

    @classmethod
    def exact(cls, problem: Problem, point: Point, seed: int | None = None) -> Dataset:
        """Makes the set of integers, of the dtypes of other sets, which outputs must match bit by bit."""
        inputs, others = problem.inputs(point, 0, seed, exact=True), problem.inputs(point, 0, seed)
        for name, value in inputs.items():
            dtype = getattr(others.get(name), "dtype", None)
            if isinstance(value, np.ndarray) and dtype is not None and value.dtype != dtype:
                inputs[name] = value.astype(dtype)
        made = cls.make(problem, point, 0, seed, inputs)
        expected = made.expected
        assert expected is not None
        for name, spec in made.specs.items():
            inexact = int((expected[name].astype(spec.dtype) != expected[name]).sum())
            if inexact:
                raise problem.error(
                    f"exact_inputs lead to {inexact} values of {name!r} that "
                    f"{np.dtype(spec.dtype)} cannot hold exactly; use smaller integers"
                )
        return replace(made, tolerances=dict.fromkeys(made.specs, Tolerance()))

    @classmethod
    def special(cls, problem: Problem, point: Point, seed: int | None = None) -> Dataset:
        inputs, planted = problem.with_special(point, seed)
        with np.errstate(all="ignore"):
            return replace(cls.make(problem, point, 0, seed, inputs), planted=planted)

    def with_few_changed(self, problem: Problem, point: Point, seed_offset: int) -> Dataset | None:
        """Makes contents that agree with these in most elements; None if drawing cannot make such.

        Pointers, scalars, first and last elements stay the same: a variant may remember its answer by them.
        """
        inputs = problem.inputs(point, self.seed_offset, self.seed, changes_few=True)
        if list(inputs) != list(self.inputs):
            return None
        changed = []
        for name, before in self.inputs.items():
            one, other = np.asarray(before), np.asarray(inputs[name])
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                return None
            parts = ((one.flat[:_START], other.flat[:_START]), (one, other))
            if not all(np.array_equal(*part, equal_nan=one.dtype.kind in "fc") for part in parts):
                changed.append(one.ndim)
        if not changed or not all(changed):
            return None
        return self.make(problem, point, seed_offset, self.seed, inputs)

    @property
    def input_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {name: value for name, value in self.inputs.items() if getattr(value, "ndim", 0)}

    @functools.cached_property
    def contents(self) -> dict[str, Contents]:
        """Says what each input array holds, which many variants share."""
        return {name: contents_of(array) for name, array in self.input_arrays.items()}

    @functools.cached_property
    def references(self) -> dict[str, Contents]:
        """Says what each output is compared with."""
        return {name: contents_of(array) for name, array in (self.expected or {}).items()}

    @property
    def in_short(self) -> dict[str, Contents]:
        """Says what each input array and each reference holds, by one number, the latter with its tolerance.

        Special values move all other elements to other places, so an array with them gets no number.
        """
        bounds = {name: {"rtol": of.rtol, "atol": of.atol} for name, of in self.tolerances.items()}
        references = {name: structs.replace(of, **bounds[name]) for name, of in self.references.items()}
        held = {f"input {name}": of for name, of in self.contents.items()} | references
        return {
            name: structs.replace(of, weighted=None, norm=None if self.planted else of.norm)
            for name, of in held.items()
        }

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of the input arrays, then of the outputs."""
        return tuple(dict.fromkeys((*self.input_arrays, *self.specs)))

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the outputs that hold contents before each launch instead of a poison."""
        return tuple(name for name in self.specs if name in self.inputs)

    @property
    def input_bytes(self) -> int:
        return sum(array.nbytes for array in self.input_arrays.values())

    @property
    def output_bytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def device_bytes(self) -> int:
        """Size of inputs and outputs together, as a launch takes them."""
        return self.input_bytes + self.output_bytes

    @property
    def expected_bytes(self) -> int:
        """Size of the reference, which is often of a higher precision than the outputs."""
        return sum(int(value.nbytes) for value in (self.expected or {}).values())

    @property
    def host_bytes(self) -> int:
        return self.input_bytes + self.expected_bytes

    @property
    def dtypes(self) -> frozenset[str]:
        """NumPy's names of the dtypes of input and output arrays."""
        outputs = [np.dtype(spec.dtype) for spec in self.specs.values()]
        return frozenset(str(dtype) for dtype in (*(a.dtype for a in self.input_arrays.values()), *outputs))

    @property
    def output_dtype(self) -> str | None:
        names = {str(np.dtype(spec.dtype)) for spec in self.specs.values()}
        return names.pop() if len(names) == 1 else None

    @property
    def scalars(self) -> dict[str, Any]:
        """The inputs that are not arrays; a variant takes them when it prepares."""
        arrays = self.input_arrays
        return {name: value for name, value in self.inputs.items() if name not in arrays}


def complaints(problem: Problem, point: Point, sets: Sequence[Dataset]) -> Iterator[str]:
    """Yields why wrong outputs would pass at a point, and the remedies; `sets` differ in contents."""
    first = sets[0]
    for name, expected in (first.expected or {}).items():
        dtype, tolerance = first.specs[name].dtype, first.tolerances[name]
        whole, expected = expected, first.specs[name].of_written(expected)

        def again(output: str = name) -> np.ndarray[Any, Any]:
            lower = {name: rounded(array, array.dtype) for name, array in first.input_arrays.items()}
            made = problem.reference(point, {**first.inputs, **lower})
            assert made is not None
            return first.specs[output].of_written(made[output])

        zeros = passes_zeros(name, expected, dtype, tolerance)
        if zeros is not None:
            yield f"{zeros}, or make inputs whose results are larger"
        if len(sets) > 1 and sets[1].expected is not None:
            other = first.specs[name].of_written(sets[1].expected[name])
            constant = hardly_varies(name, expected, other, dtype)
            if constant is not None and first.inputs:
                yield f"{constant}; have make_inputs draw from rng, so that results vary"
        lower = None
        if problem.allow_lower_precision is None and zeros is None:
            lower = passes_lower_precision(name, expected, dtype, tolerance, again)
        if lower is not None:
            yield f"{lower}, or say in allow_lower_precision why that may pass"
        if name in first.updated and expected.size and bool((whole == first.inputs[name]).all()):
            yield f"{name}: the reference equals the input, so a launch that does nothing would pass"


def kept(problem: Problem, point: Point, first: Dataset, second: Dataset) -> list[Dataset]:
    sets = [first]
    for number, (name, array) in enumerate(first.input_arrays.items(), start=1):
        inputs = {**second.inputs, name: array}
        expected = problem.reference(point, inputs)
        sets.append(Dataset(number, inputs, second.specs, expected, second.tolerances, first.seed))
    return sets


def _refuse_other_shapes(problem: Problem, first: Dataset, other: Dataset) -> None:
    for name, value in {**first.inputs, **first.specs}.items():
        shape = getattr(value, "shape", ())
        drawn = getattr({**other.inputs, **other.specs}.get(name), "shape", ())
        if shape != drawn:
            raise problem.error(
                f"{name!r} has shape {shape} from one seed and {drawn} from another, but all seeds share "
                "their buffers; have make_inputs draw the same number of elements each time, or pad them"
            )


def store(made: Dataset, folder: Path) -> None:
    """Stores inputs and reference of a set for `load`, unless a value would not come back the same."""
    arrays: list[np.ndarray[Any, Any]] = []

    def entry(value: Any) -> Any:
        if type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return {"value": value}
        plain = type(value) is np.ndarray and value.flags.c_contiguous and value.size
        if not (plain or isinstance(value, np.generic)) or value.dtype.isbuiltin != 1:
            raise TypeError
        arrays.append(value)
        return {"file": f"{len(arrays)}.npy", "mapped": bool(plain)}

    partial = folder.with_name(f"{folder.name}.partial")
    try:
        entries = {"inputs": {name: entry(value) for name, value in made.inputs.items()}, "expected": None}
        if made.expected is not None:
            entries["expected"] = {name: entry(value) for name, value in made.expected.items()}
        partial.mkdir(parents=True)
        stored = sum(file.stat().st_size for file in folder.parent.glob("*/*.npy"))
        # All sets together take a quarter: the disk is not ours alone, and may be memory.
        if stored + made.host_bytes <= (stored + shutil.disk_usage(partial).free) / 4:
            (partial / "names.json").write_bytes(msgspec.json.encode(entries))
            for number, value in enumerate(arrays, 1):
                np.save(partial / f"{number}.npy", value, allow_pickle=False)
            partial.rename(folder)
    except (TypeError, ValueError, OverflowError, OSError):
        pass  # such as a value of another type, a NaN, a full disk
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(folder: Path, problem: Problem, point: Point, seed_offset: int, seed: int | None) -> Dataset | None:
    """Returns the set that `store` wrote, its arrays mapped from their files; None if there is none."""

    def value(entry: Any) -> Any:
        if "value" in entry:
            return entry["value"]
        if not entry["mapped"]:
            return np.load(folder / entry["file"])[()]
        return np.asarray(np.load(folder / entry["file"], mmap_mode="c"))  # no memmap, which is a subclass

    try:
        entries = msgspec.json.decode((folder / "names.json").read_bytes())
    except FileNotFoundError:
        return None
    inputs = {name: value(entry) for name, entry in entries["inputs"].items()}
    expected = entries["expected"] and {name: value(entry) for name, entry in entries["expected"].items()}
    specs = problem.output_specs(point, inputs)
    return Dataset(seed_offset, inputs, specs, expected, problem.tolerances(specs, point), seed)


class Datasets:
    """Holds the data sets of the current point, and drops the sets of the point before.

    Cases come point by point, so keeping one point makes each reference once.

    Args:
        points: how many of the newest points of a problem to keep.
        seed: seed of all inputs, instead of the seed of every run that records.

    Attributes:
        folder: where sessions of the same code keep sets for each other; None for nowhere.
        test: the test function whose cases are measured. Each has its own files, since problems that one
            helper declares share line and name.
    """

    def __init__(self, points: int = 1, seed: int | None = None, folder: Path | None = None) -> None:
        self._seed = seed
        self.folder = folder
        self.test = ""
        self._most = points
        self._problem: Problem | None = None  # an id alone may come back for another problem
        self._held: dict[str, dict[int, Dataset]] = {}
        self._complaints: dict[str, tuple[str, ...]] = {}

    def get(self, problem: Problem, point: Point, seed_offset: int) -> Dataset:
        sets = self._at(problem, point)
        if seed_offset in sets:
            return sets[seed_offset]
        identity = (self.test, problem.name, sorted(point.items()), self._seed, seed_offset)
        name = hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
        stored = None if self.folder is None else self.folder / name
        made = None if stored is None else load(stored, problem, point, seed_offset, self._seed)
        if made is None:
            if seed_offset == CONTENTS - 1 and problem.check is None:  # a check judges independent runs
                before = self.get(problem, point, seed_offset - 1)
                made = before.with_few_changed(problem, point, seed_offset)
            made = made or Dataset.make(problem, point, seed_offset, self._seed)
            if stored is not None:
                store(made, stored)
        _refuse_other_shapes(problem, sets.get(0, made), made)
        sets[seed_offset] = made
        return made

    def other(self, problem: Problem, point: Point, contents: str) -> list[Dataset]:
        """Returns the sets of `special`, `exact` or `kept` contents of a problem at a point."""
        sets = self._at(problem, {**point, "contents of": contents})
        if not sets:
            if contents == "kept":
                made = kept(problem, point, self.get(problem, point, 0), self.get(problem, point, 1))
            else:
                make = Dataset.special if contents == "special" else Dataset.exact
                made = [make(problem, point, self._seed)]
            sets.update(enumerate(made))
        return list(sets.values())

    def _at(self, problem: Problem, point: Point) -> dict[int, Dataset]:
        """Returns the sets of a point; for a new point, we first drop the oldest."""
        if self._problem is not problem:
            self._held.clear()
            self._complaints.clear()
            self._problem = problem
        wanted = repr(sorted(point.items()))
        if wanted not in self._held:
            while len(self._held) >= self._most:
                del self._held[next(iter(self._held))]
            self._held[wanted] = {}
        return self._held[wanted]

    def examined(self, problem: Problem, point: Point, sets: Sequence[Dataset]) -> tuple[Note, ...]:
        """Returns notes about weak data at a point; raises ProblemError if the point is declared."""
        self._at(problem, point)
        key = repr(sorted(point.items()))
        if key not in self._complaints:
            self._complaints[key] = tuple(complaints(problem, point, sets))
        weaknesses = self._complaints[key]
        if weaknesses and problem.axes.declare(point):
            where = ", ".join(f"{name}={value}" for name, value in point.items())
            lines = (f"its tolerance or data accepts wrong results at {where}", *weaknesses)
            raise problem.error("\n  ".join(lines))
        return tuple(Note(f"accepts wrong results: {complaint}") for complaint in weaknesses)

    def for_check(
        self, problem: Problem, point: Point, *, contents: int, available_bytes: float
    ) -> list[Dataset]:
        """Returns the sets with which a variant is checked and timed: `contents` many, or the check's seeds.

        A stored result does not fit other contents in the same buffers. Sets above 1 GiB come in two at most,
        since making one takes seconds. There are fewer if one more would take over a third of the free host
        memory; sets that we already keep do not count.
        """
        if problem.check is not None:
            return [self.get(problem, point, offset) for offset in range(CHECK_SEEDS)]
        sets, held = [self.get(problem, point, 0)], self._at(problem, point)
        if sets[0].host_bytes > _LARGE_BYTES:
            contents = min(contents, 2)
        while len(sets) < contents:
            if len(sets) not in held and sets[0].host_bytes > available_bytes / 3:
                break
            sets.append(self.get(problem, point, len(sets)))
        return sets
