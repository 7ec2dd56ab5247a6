"""pytester, for the tests that run pytest inside pytest."""

pytest_plugins = ["pytester"]
