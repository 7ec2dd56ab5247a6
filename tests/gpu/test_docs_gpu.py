"""Runs the code of the site's pages that needs a GPU, or asks whether there is one."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"^(<!-- needs a GPU -->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = {
    f"{page.stem}-{number}": code
    for page in sorted(DOCS.glob("*/*.md"))
    for number, (needs_gpu, code) in enumerate(BLOCKS.findall(page.read_text(encoding="utf-8")))
    if needs_gpu or "gpu_device" in code
}


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("options", [(), ("--gpu-benchmark",)], ids=["checked", "measured"])
def test_the_code_of_a_page_passes_on_a_gpu(pytester, plugin_option, name, options):
    pytester.makepyfile(CODE[name])
    result = pytester.runpytest_subprocess(*options, *plugin_option, "-rs")
    if "could not import" in result.stdout.str():
        pytest.skip("a library that the page uses is not installed")
    if not options and "has no attribute 'typeDict'" in result.stdout.str():
        pytest.skip("beside NumPy 2, scikit-cuda needs one of our options")
    assert result.ret == 0
    assert set(result.parseoutcomes()) - {"warnings"} == {"passed"}  # libraries warn, too
