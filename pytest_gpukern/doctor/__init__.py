"""`gpukern doctor` and `gpukern devices`: what is wrong with an installation, and what a machine has."""
