"""Work that is done by several threads."""

import gc

from pytest_gpukern.arrays.threaded import map_in_threads


def test_threads_collect_no_garbage_which_may_belong_to_another_threads_cuda_context():
    assert gc.isenabled()
    assert map_in_threads(lambda _: gc.isenabled(), range(3)) == [False] * 3
    assert gc.isenabled()
