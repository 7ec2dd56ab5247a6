"""What other tools would say about the same samples: one session of each side, all cases at once.

Each rule takes samples of an old and a new session, cases × samples, and says where the new one is slower.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_gpukern.measure.statistics import student_t

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TWO_SIDED_5_PERCENT = 0.975
_CRITERIONS_NOISE = 0.01
_MEDIAN_GREW = 0.05


def mann_whitney(old: Any, new: Any) -> Any:
    """p < 0.05 of the rank sum, as in Google Benchmark's `compare.py` (Mann & Whitney 1947, normal form)."""
    import numpy as np

    n = old.shape[1]
    ranks = np.argsort(np.argsort(np.concatenate([old, new], axis=1), axis=1), axis=1) + 1
    above = ranks[:, n:].sum(axis=1) - n * (n + 1) / 2
    z = (above - n * n / 2) / math.sqrt(n * n * (2 * n + 1) / 12)
    return z > student_t(_TWO_SIDED_5_PERCENT, math.inf)


def t_test(old: Any, new: Any) -> Any:
    """p < 0.05 of Student's test of the means."""
    return _t(old, new) > student_t(_TWO_SIDED_5_PERCENT, 2 * old.shape[1] - 2)


def criterion(old: Any, new: Any) -> Any:
    """As criterion.rs with its defaults: p < 0.05, and the interval of the change of the mean above +1 %.

    The bootstrap's interval is replaced by the normal one.
    """
    mean = old.mean(axis=1)
    change = new.mean(axis=1) / mean - 1
    error = _error(old, new) / mean
    low = change - student_t(_TWO_SIDED_5_PERCENT, math.inf) * error
    return t_test(old, new) & (low > _CRITERIONS_NOISE)


def nvbench(old: Any, new: Any) -> Any:
    """As NVBench's `nvbench_compare.py`: the change of the mean exceeds the smaller relative deviation."""
    import numpy as np

    noise = np.minimum(*(side.std(axis=1, ddof=1) / side.mean(axis=1) for side in (old, new)))
    return new.mean(axis=1) / old.mean(axis=1) - 1 > noise


def median_grew(old: Any, new: Any) -> Any:
    """As pytest-benchmark's `--benchmark-compare-fail=median:5%`."""
    import numpy as np

    return np.median(new, axis=1) > (1 + _MEDIAN_GREW) * np.median(old, axis=1)


def _t(old: Any, new: Any) -> Any:
    return (new.mean(axis=1) - old.mean(axis=1)) / _error(old, new)


def _error(old: Any, new: Any) -> Any:
    import numpy as np

    return np.sqrt(sum(side.var(axis=1, ddof=1) / side.shape[1] for side in (old, new)))


RULES: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "Mann-Whitney, p < 0.05": mann_whitney,
        "t-test, p < 0.05": t_test,
        "like criterion": criterion,
        "like NVBench's compare": nvbench,
        "median > 5 % (pytest-benchmark)": median_grew,
    }
)
