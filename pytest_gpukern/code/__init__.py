"""Compiles the kernels that tests launch, for named architectures, on a machine without a GPU.

Read `launches.py` first: a stand-in for the device records launches instead of executing them.
"""
