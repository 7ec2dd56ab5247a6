"""What a session under a tool does itself: no pools, kernels with lines, an end with its parent."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from pytest_gpukern.gpu.process_tree import is_alive
from pytest_gpukern.values.sanitizer_env import asking_process

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_gpukern.run.environment import Environment

_LOOK_S = 1.0
_ENDED_WITH_PARENT = 70


def prepare(config: pytest.Config, environment: Environment) -> None:
    """Makes this process's allocations and kernels tell as much as they can, before tests are collected.

    Called once the device is chosen: libraries look at it when they are imported.
    """
    asking = asking_process()
    if asking is not None:
        end_with(asking)
    if environment.has_gpu:
        from pytest_gpukern.sanitizer.allocators import prepare_libraries

        config.add_cleanup(prepare_libraries())


def end_with(
    process: int,
    *,
    alive: Callable[[int], bool] = is_alive,
    sleep: Callable[[float], None] = time.sleep,
    end: Callable[[int], None] = os._exit,
) -> threading.Thread:
    """Ends this process soon after another one has; the tool between the two passes no such news on."""

    def watch() -> None:
        while alive(process):
            sleep(_LOOK_S)
        end(_ENDED_WITH_PARENT)

    thread = threading.Thread(target=watch, name="gpukern-parent", daemon=True)
    thread.start()
    return thread
