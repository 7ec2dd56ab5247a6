"""Runs of pytest inside pytest: what a user sees."""
