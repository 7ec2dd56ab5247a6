"""Declares broken variants that PyTorch invites; each must be rejected for its fault."""

from .problem import vector_exp


@vector_exp.wrong("torch", expected_fault="wrong values")
def half_precision(x, y):
    """Computes in float16; `copy_` widens without a word."""
    return lambda: y.copy_(x.half().exp())


@vector_exp.wrong("torch", expected_fault="input modified")
def computed_in_place(x, y):
    """`exp_` overwrites the tensor that it is called on."""
    return lambda: y.copy_(x.exp_())


@vector_exp.wrong("torch", allocates=True, expected_fault="wrong type")
def result_on_host(x):
    """Returns a host tensor."""
    return lambda: x.exp().cpu()


@vector_exp.wrong("torch", allocates=True, expected_fault="wrong type")
def graph_attached(x):
    """Asks for a gradient that nobody wants: each result holds its input and the way from it."""
    source = x.detach().requires_grad_()
    return lambda: source.exp()
