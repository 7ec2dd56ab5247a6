"""`--gpukern-sanitize`: each test once under tools of compute-sanitizer, and whose fault a finding is.

`tool.py` finds the program, `xml_report.py` and `log.py` read what it wrote, `judgement.py` decides what that
comes to, `attribution.py` to which test it belongs, `lines.py` to which line of Python, `telling.py` what the
test says; `control.py` has a tool show that it works here, `sessions.py` runs it on tests, and `plugin.py`
has these tell. `inside.py` is what a session under a tool does itself.
"""
