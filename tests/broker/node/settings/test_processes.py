"""Settings of several nodes of one start, and how many there are."""

import os
from pathlib import Path

import pytest

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.memory import memory_for
from anabranch.broker.node.settings.processes import available_cores, process_count, settings_of_each
from anabranch.broker.node.settings.sources import load

GIB = 1 << 30


def _machine(root: Path, *, memory_gib: int, cpu_max: str = "max 100000") -> Path:
    """A machine whose processes are in the control group `/box` of version 2."""
    for name, text in {
        "proc/meminfo": f"MemTotal: {memory_gib * GIB // 1024} kB\n",
        "proc/self/cgroup": "0::/box\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/box/cpu.max": f"{cpu_max}\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_first_node_is_where_a_single_one_is_and_the_others_have_a_folder_of_their_own() -> None:
    settings = load(
        {"node.data_dir": "/data", "node.node_id": 4, "node.processes": 3, "cluster.internal_port": 7000}, {}
    )
    nodes = settings_of_each(settings, 3)
    assert [each.node.node_id for each in nodes] == [4, 5, 6]
    assert [str(each.wal_path) for each in nodes] == ["/data/wal", "/data/node-5/wal", "/data/node-6/wal"]
    assert {each.catalog_url for each in nodes} == {"sqlite:////data/catalog.db"}
    assert {str(each.objects_path) for each in nodes} == {"/data/objects"}
    assert [each.listeners[0].port for each in nodes] == [9093, 9094, 9095]
    assert [each.internal_port for each in nodes] == [7000, 7001, 7002]
    assert [each.admin.port for each in nodes] == [9644, 9645, 9646]


def test_named_listeners_and_announced_ports_are_moved_and_free_ports_stay_free() -> None:
    settings = load(
        {
            "listener.listeners": "PLAINTEXT://127.0.0.1:0, SSL://[::1]:9200",
            "listener.advertised_listeners": "SSL://kafka.example.com:443",
            "ssl.certificate_file": "cert.pem",
        },
        {},
    )
    _, second = settings_of_each(settings, 2)
    plain, tls = second.listeners
    assert (plain.port, tls.host, tls.port) == (0, "::1", 9202)
    assert (tls.advertised_host, tls.advertised_port) == ("kafka.example.com", 445)


def test_a_log_file_has_others_beside_it_and_a_device_needs_others(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({"wal.path": "/fast/wal"}, {})
    assert [str(each.wal_path) for each in settings_of_each(settings, 2)] == ["/fast/wal", "/fast/wal-2"]
    monkeypatch.setattr("anabranch.broker.node.settings.processes._is_device", lambda path: path.name == "wal")
    with pytest.raises(SettingsError, match=r"/fast/wal is a block device.* node 2 .* link /fast/wal-2"):
        settings_of_each(settings, 2)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (
            {"admin.port": 9094},
            "admin.port of node 1: 9094 is also listener.port of node 2|listener.port of node 2: 9094",
        ),
        ({"cluster.internal_port": 9091}, "cluster.internal_port of node 2: 9092 is also listener.port"),
        ({"listener.port": 65534}, "port 65536, 2 after 65534, does not exist"),
    ],
)
def test_ports_that_meet_are_refused(wanted: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings_of_each(load(wanted, {}), 2)


@pytest.mark.parametrize("count", [2, "auto"])
def test_nodes_that_choose_their_ids_are_started_one_by_one(count: object) -> None:
    with pytest.raises(SettingsError, match=r"node\.processes: more than 1, but with node\.node_id = auto"):
        load({"node.node_id": "auto", "node.processes": count}, {})


def test_memory_that_is_not_set_is_divided(tmp_path: Path) -> None:
    root = _machine(tmp_path, memory_gib=8)
    first, _ = settings_of_each(load({}, {}), 2)
    assert memory_for(first, root).available_bytes == 4 * GIB
    assert "divided among 2 processes" in memory_for(first, root).source
    first, _ = settings_of_each(load({"node.memory_bytes": "3GiB"}, {}), 2)
    assert memory_for(first, root).available_bytes == 3 * GIB, "it is for each node"


def test_auto_is_a_process_for_each_core_with_memory_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    settings = load({"node.processes": "auto"}, {})
    assert process_count(settings, _machine(tmp_path, memory_gib=64)) == 16
    assert process_count(settings, _machine(tmp_path, memory_gib=2)) == 4
    assert process_count(settings, _machine(tmp_path, memory_gib=64, cpu_max="250000 100000")) == 3
    assert process_count(load({"node.processes": 5}, {}), tmp_path) == 5
    assert process_count(load({}, {}), tmp_path) == 1


def test_the_quota_of_a_control_group_of_version_1_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(16), raising=False)
    folder = tmp_path / "sys/fs/cgroup/cpu/box"
    folder.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu,cpuacct:/box\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("400000\n")
    assert available_cores(tmp_path) == 4
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cores(tmp_path) == 16
