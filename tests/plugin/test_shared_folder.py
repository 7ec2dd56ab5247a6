"""Checks two modules of one name that keep their baselines in one folder."""

TEST = """
def test_it(gpu_benchmark):
    def launch(): pass
    launch.takes_ns = {}
    gpu_benchmark(launch)
"""


def test_modules_of_one_name_do_not_share_a_baseline(pytester, gpu):
    for folder, takes_ns in (("a", 1000), ("b", 9000)):
        pytester.mkpydir(folder)
        (pytester.path / folder / "test_k.py").write_text(TEST.format(takes_ns))
    gpu("a", "b", "--gpukern-baseline=create", "--gpukern-baseline-dir=all").assert_outcomes(passed=2)
    names = sorted(path.name.partition(".json")[0] for path in (pytester.path / "all").iterdir())
    assert [name.rpartition(".")[0] for name in names] == ["a.test_k", "b.test_k"]
    again = gpu("a", "b", "--gpukern-baseline-dir=all")
    again.assert_outcomes(passed=2)
    again.stdout.fnmatch_lines(["gpukern: 0 passed, 2 unchecked* baseline: 2 same"])
