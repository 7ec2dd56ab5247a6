"""What the simulator can refuse: a contradictory request, or a feature it has no means to run."""

_PREFIX = "not in the simulator: "


class SimulatorError(Exception):
    """The options, the environment and what is already loaded contradict each other.

    The message shows the value seen, the rule, and the remedy.
    """


class SimulatorUnsupported(Exception):  # noqa: N818 - a skip in the making, not a failure
    """Code run in the simulator used a feature that cannot be emulated there.

    `feature` names it in the user's words, as in ``warp shuffles (cuda.shfl_sync)``.
    """

    def __init__(self, feature: str) -> None:
        # Numba's simulated threads re-raise as type(error)("tid=… ctaid=…: " + str(error)):
        # the one argument is then a whole message, which is kept, and the feature is what it ends with.
        before, marker, after = feature.partition(_PREFIX)
        if not marker:
            before, after = "", feature
        self.feature = after
        super().__init__(f"{before}{_PREFIX}{self.feature}")
