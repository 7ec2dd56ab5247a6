"""Declares broken variants that Dask invites; each must be rejected for its fault."""

from .on_dask import exponential
from .problem import vector_exp


@vector_exp.wrong("dask", allocates=True, expected_fault="wrong type")
def never_computed(x):
    """Returns the graph: what was timed is the making of a plan."""
    return lambda: x.map_blocks(exponential)


@vector_exp.wrong("dask", allocates=True, expected_fault="stale result")
def persisted(x):
    """`persist` computes before the timed region, which then copies that answer out."""
    computed = x.map_blocks(exponential).persist()
    return lambda: computed.compute()
