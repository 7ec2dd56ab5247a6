"""What compute-sanitizer wrote: recorded excerpts (`data/sanitizer/README.md` says of what), put together."""

from pathlib import Path

FOLDER = Path(__file__).parent / "data" / "sanitizer"
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MADE_UP_ADMISSION = "========= Error: made up: this tool does not know the device\n"
"""No tool was recorded that did not work: only that it would say so in a line of its own is supposed here."""


def recorded(name):
    """What a file holds."""
    return (FOLDER / name).read_text(encoding="utf-8")


def records(tool):
    """The recorded records of a tool's fault, as text."""
    inner = recorded(f"{tool}.xml").partition("<ComputeSanitizerOutput>")[2].rpartition("</")[0]
    return [f"{record}</record>" for record in inner.split("</record>")[:-1]]


def xml(*texts):
    """A whole report of these records."""
    if not texts:
        return recorded("clean.xml")
    head, _, tail = recorded("clean.xml").partition("<ComputeSanitizerOutput/>")
    return f"{head}<ComputeSanitizerOutput>{''.join(texts)}\n</ComputeSanitizerOutput>{tail}"


def log(*, errors=0, tool="memcheck", said=""):
    """A log with its summary, of so many errors."""
    text = recorded("racecheck-clean.log" if tool == "racecheck" else "clean.log")
    banner, summary = (
        text.replace("0 hazards", f"{errors} hazards").replace("0 err", f"{errors} err").splitlines()
    )
    return f"{banner}\n{said}{summary}\n"
