"""What the suites are made of is there; `make suites` runs them."""

import pytest

from tests.suites.clients import SUITES, Suite
from tests.suites.run import HERE, expected, home_of, lay_out


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_has_its_list_its_files_and_its_line(suite: Suite) -> None:
    assert all(test.split("::")[0].startswith(tuple(suite.folders)) for test in expected(suite))
    for name in suite.overlay.values():
        assert (HERE / "overlay" / name).is_file()
    assert f"| `{suite.name}` |" in (HERE / "README.md").read_text()
    assert (suite.repository is None) == (suite.tag is None)


def test_tests_are_laid_out_apart_from_the_clients_own_code(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    suite = SUITES[0]
    home = home_of(suite)
    (home / "source" / "test").mkdir(parents=True)
    (home / "source" / "test" / "test_it.py").touch()
    (home / "source" / "kafka").mkdir()
    for _ in range(2):  # again, over what a former run has left
        lay_out(suite, home)
    found = {str(path.relative_to(home / "work")) for path in (home / "work").rglob("*") if path.is_file()}
    assert found == {"test/test_it.py", *suite.overlay}
