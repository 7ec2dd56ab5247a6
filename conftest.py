"""pytester, for the tests that run pytest inside pytest, and less garbage to look through while they do."""

import gc

pytest_plugins = ["pytester"]


def pytest_collection_finish():
    """Leaves out of later garbage collections what was collected; each took a third of a second for it."""
    gc.collect()
    gc.freeze()
