import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.spark.fetch import FetchError, run
from scripts import tools
from scripts.tools import Tool, ensure, java_trust_store, machine_certificates, main, move_into_place


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(tools, "CACHE", folder)
    return folder


def make_tool(place: Path, *, fails: bool = False) -> Tool:
    def fetch(work: Path) -> None:
        made = work / "made"
        made.mkdir()
        (made / "half").write_text("x")
        if fails:
            raise FetchError("no network")
        move_into_place(made, place)

    return Tool("thing", "a thing", lambda: tools.existing(place), fetch)


def test_a_tool_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = make_tool(cache / "thing")
    assert ensure(tool) == (True, str(cache / "thing"))
    monkeypatch.setattr(tools, "locked", None)
    assert ensure(tool) == (True, str(cache / "thing"))


def test_a_failed_fetch_leaves_nothing_and_says_why(cache: Path) -> None:
    assert ensure(make_tool(cache / "thing", fails=True)) == (False, "no network")
    assert [path.name for path in cache.iterdir()] == [".thing.lock"]


def test_a_rest_of_an_earlier_try_is_replaced(tmp_path: Path) -> None:
    made, place = tmp_path / "made", tmp_path / "place"
    made.mkdir()
    (made / "new").touch()
    place.mkdir()
    (place / "old").touch()
    move_into_place(made, place)
    assert [path.name for path in place.iterdir()] == ["new"]


@pytest.mark.parametrize(("required", "status"), [("0", 0), ("1", 1)])
def test_a_missing_tool_fails_only_where_it_is_required(
    required: str, status: int, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "TOOLS", (make_tool(cache / "thing", fails=True),))
    monkeypatch.setenv("ANABRANCH_REQUIRE_TOOLS", required)
    assert main([]) == status
    assert "SKIPPED  no network" in capsys.readouterr().out


def test_an_unknown_tool_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["typo"]) == 2
    known = (
        "java, spark, kafka, kafka-streams, connect, rest-catalog, flink-registry, trino, s3, minio, hydra, otelcol, "
        "registry-client, share-client, rack-client, helm, actionlint, packaging, site, release, monitoring, recipes, "
        "duckdb, kcat, postgres, prometheus, faketime, chromium, fio"
    )
    assert f"unknown tool 'typo'; known: {known}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "fetch",
    [
        tools.fetch_hydra,
        tools.fetch_otelcol,
        tools.fetch_registry_client,
        tools.fetch_share_client,
        tools.fetch_rack_client,
        tools.go_tool("x", "x", "helm", "x").fetch,
    ],
)
def test_go_leaves_nothing_outside_of_its_work_folder(
    fetch: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for Go writes where Go does, one file in each of its folders."""
    programs, home, work = (tmp_path / name for name in ("programs", "home", "work"))
    for folder in (programs, home, work):
        folder.mkdir()
    go = programs / "go"
    writes = 'for place in "${GOCACHE:-$HOME/.cache/go-build}" "${GOMODCACHE:-$HOME/go/pkg/mod}" "${GOPATH:-$HOME/go}"'
    made = (
        f"touch {work}/helm {work}/hydra {work}/otelcol {work}/registry-client {work}/share-client {work}/rack-client"
    )
    go.write_text(f'#!/bin/sh\n{writes}; do mkdir -p "$place" && touch "$place/file"; done\n{made}\n')
    go.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    fetch(work)
    assert not list(home.iterdir())
    assert (work / "go-build" / "file").exists()


def test_a_program_in_go_is_built_anew_when_its_sources_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = tmp_path / "main.go"
    places = set()
    for text, module in (("a", "m@v1"), ("b", "m@v1"), ("b", "m@v2")):
        main.write_text(text)
        monkeypatch.setattr(tools, "GO_PROGRAMS", {"x": (main, module)})
        places.add(tools.go_program("x"))
    assert len(places) == 3


def test_the_reason_of_a_failed_program_is_its_own_complaint() -> None:
    with pytest.raises(FetchError, match=r"sh failed \(3\): host registry not found"):
        run("sh", "-c", "echo one; echo host registry not found >&2; echo bye >&2; exit 3")


@pytest.mark.slow
def test_java_reads_the_trust_store(tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    certificates = machine_certificates()
    if keytool is None or not certificates:
        pytest.skip("needs a keytool and the machine's certificates")
    store = tmp_path / "store"
    store.write_bytes(java_trust_store(certificates))
    command = [keytool, "-list", "-keystore", str(store), "-storetype", "JKS", "-storepass", "changeit"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert listed.count("trustedCertEntry") == len(certificates)


def test_certificates_are_those_of_the_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = machine_certificates()
    if not certificates:
        pytest.skip("needs the machine's certificates")
    bundle = tmp_path / "one.pem"
    bundle.write_text(ssl.DER_cert_to_PEM_cert(certificates[0]))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert machine_certificates() == [certificates[0]]
