"""Files for deployments are checked by the programs that read them; no engine of containers is needed."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.processes import settings_of_each
from anabranch.broker.node.settings.sources import load, unknown_environment
from anabranch.broker.operator.cli.serve import stop_limit_s
from tests.support import tools
from tests.support.node import NodeProcess

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "anabranch"
UNIT: Final = ROOT / "deploy" / "systemd" / "anabranch.service"
REQUIRED: Final = ("catalog.existingSecret.name=db", "objects.bucket=events")
KUBERNETES: Final = "1.37.0"
FULL: Final = (
    "networkPolicy.enabled=true",
    "networkPolicy.clientsFrom[0].podSelector.matchLabels.app=shop",
    "objects.existingSecret=keys",
    "objects.region=eu-north-1",
    "objects.endpoint=https://s3.example",
    "log.storageClassName=fast",
    "priorityClassName=high",
    "extraEnv[0].name=ANABRANCH_LOG_LEVEL",
    "extraEnv[0].value=debug",
)
SEVERAL: Final = ("processes=3", "networkPolicy.enabled=true")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


# Dockerfile


def test_hadolint_accepts_the_dockerfile() -> None:
    found = run(tools.packaging("hadolint"), "--no-color", ROOT / "Dockerfile")
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_context_has_all_that_the_dockerfile_copies() -> None:
    wanted = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for names in copied for name in names.split()}
    assert names
    assert names <= wanted


def test_the_images_of_nodes_do_not_run_as_root_and_have_pinned_bases() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    for stage in stages:
        assert re.match(r"\S+:\d+\.\d+(\.\d+)?-\S+ AS ", stage), stage.splitlines()[0]
    for name in ("node", "spark"):
        (stage,) = [stage for stage in stages if stage.splitlines()[0].endswith(f" AS {name}")]
        assert re.findall(r"^USER (\S+)", stage, re.MULTILINE) == ["10001"], name


# Helm


def template(*values: str) -> subprocess.CompletedProcess[str]:
    chosen = [argument for value in values for argument in ("--set", value)]
    return run(tools.helm(), "template", "some", CHART, "--namespace", "here", "--kube-version", KUBERNETES, *chosen)


def rendered(python: Path, *values: str) -> Mapping[tuple[str, str], Any]:
    """Objects of the chart by kind and name; `python` has a YAML parser."""
    found = template(*values)
    assert found.returncode == 0, found.stderr
    code = "import json, sys, yaml; print(json.dumps([each for each in yaml.safe_load_all(sys.stdin) if each]))"
    parsed = subprocess.run([python, "-c", code], input=found.stdout, capture_output=True, text=True, check=True)
    return {(each["kind"], each["metadata"]["name"]): each for each in json.loads(parsed.stdout)}


def test_helm_accepts_the_chart() -> None:
    chosen = [argument for value in REQUIRED for argument in ("--set", value)]
    found = run(tools.helm(), "lint", "--strict", "--kube-version", KUBERNETES, CHART, *chosen)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "values"),
    [*product(("file", "block", "object"), ((), FULL)), ("file", SEVERAL)],
    ids=lambda each: each if isinstance(each, str) else str(len(each)),
)
def test_its_objects_have_the_schemas_of_kubernetes(tmp_path: Path, log: str, values: Sequence[str]) -> None:
    validate = tools.packaging("kubernetes-validate")
    found = template(*REQUIRED, f"log.kind={log}", *values)
    assert found.returncode == 0, found.stderr
    (tmp_path / "objects.yaml").write_text(found.stdout)
    said = run(validate, "--strict", "--kubernetes-version", KUBERNETES, tmp_path / "objects.yaml")
    assert said.returncode == 0, said.stdout + said.stderr
    assert (said.stdout + said.stderr).count("passed for resource") == found.stdout.count("\nkind: ")
    (tmp_path / "objects.yaml").write_text(found.stdout.replace("runAsNonRoot:", "runAsNobody:"))
    assert run(validate, "--strict", tmp_path / "objects.yaml").returncode != 0, "the schema is looked at"


def settings_of(stateful_set: Any, config: str, folder: Path) -> Settings:
    """The settings that a node of the chart finds."""
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    environment: dict[str, str] = {}
    for each in container["env"]:
        value = each.get("value")
        if value is None and "secretKeyRef" in each["valueFrom"]:
            value = "postgresql://user@db/anabranch"
        elif value is None:
            value = {"metadata.name": "some-2", "metadata.namespace": "here"}.get(
                each["valueFrom"]["fieldRef"]["fieldPath"], "2"
            )
        environment[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: environment[match[1]], value)
    assert not unknown_environment(environment)
    (folder / "node.toml").write_text(config)
    return load({}, environment, folder / "node.toml")


def test_a_node_understands_the_settings_of_the_chart(tmp_path: Path) -> None:
    python = tools.packaging("python")
    objects = rendered(python, *REQUIRED, *FULL, "config=[topic]\nretention_ms = 1000")
    stateful_set = objects["StatefulSet", "some"]
    settings = settings_of(stateful_set, objects["ConfigMap", "some"]["data"]["node.toml"], tmp_path)
    assert settings.node.node_id == 2
    assert settings.listener.advertised_host == "some-2.some-nodes.here.svc.cluster.local"
    assert settings.cluster.internal_advertised_host == settings.listener.advertised_host
    assert (settings.objects.store, settings.objects.bucket) == ("s3", "events")
    assert settings.topic.retention_ms == 1_000
    assert (settings.wal.kind, settings.wal.takeover) == ("device", "none")
    pod = stateful_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    expected = (settings.listener.port, settings.cluster.internal_port, settings.admin.port)
    assert (ports["kafka"], ports["internal"], ports["admin"]) == expected
    assert pod["terminationGracePeriodSeconds"] > stop_limit_s(settings)
    services = [each["spec"] for (kind, _), each in objects.items() if kind == "Service"]
    for service in services:
        assert service["selector"].items() <= stateful_set["spec"]["template"]["metadata"]["labels"].items()


def test_several_nodes_of_a_pod_have_ids_and_ports_that_others_may_reach(tmp_path: Path) -> None:
    objects = rendered(tools.packaging("python"), *REQUIRED, *SEVERAL)
    nodes = settings_of_each(settings_of(objects["StatefulSet", "some"], "", tmp_path), 3)
    assert [each.node.node_id for each in nodes] == [201, 202, 203]
    assert {each.wal.takeover for each in nodes} == {"machine"}
    clients, _, others = objects["NetworkPolicy", "some"]["spec"]["ingress"]
    for ports, wanted in (
        (clients, [9092, *(each.listeners[0].port for each in nodes)]),
        (others, [each.internal_port for each in nodes]),
    ):
        ranges = [range(each["port"], each["endPort"] + 1) for each in ports["ports"]]
        assert all(any(port in allowed for allowed in ranges) for port in wanted)


def test_a_node_answers_the_probes_of_chart_and_image(tmp_path: Path) -> None:
    files = [CHART / "templates" / "statefulset.yaml", ROOT / "Dockerfile"]
    paths = {path for file in files for path in re.findall(r"/health[a-z/]*", file.read_text())}
    assert paths == {"/health/live", "/health/ready"}
    with NodeProcess(tmp_path) as node:
        for path in paths:
            with urlopen(f"http://{node.admin}{path}", timeout=20) as response:
                assert response.status == 200


def test_the_log_is_on_a_volume_of_its_kind(tmp_path: Path) -> None:
    python = tools.packaging("python")
    modes: dict[str, list[str]] = {}
    paths: dict[str, object] = {}
    for log in ("file", "block", "object"):
        stateful_set = rendered(python, *REQUIRED, f"log.kind={log}")["StatefulSet", "some"]
        modes[log] = [each["spec"]["volumeMode"] for each in stateful_set["spec"].get("volumeClaimTemplates", ())]
        paths[log] = settings_of(stateful_set, "", tmp_path).wal.path
    assert modes == {"file": ["Filesystem"], "block": ["Block"], "object": []}
    assert paths == {"file": None, "block": Path("/dev/anabranch-log"), "object": None}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("objects.bucket=events",), "catalog.existingSecret.name: name a secret with the URL"),
        (("catalog.existingSecret.name=db",), "objects.bucket: name the bucket"),
        ((*REQUIRED, "log.kind=tape"), "'/log/kind'"),
        ((*REQUIRED, "processes=many"), "'/processes'"),
        ((*REQUIRED, "processes=auto", "log.kind=block"), "a log of kind block is of one process only"),
        ((*REQUIRED, "replica=3"), "additional properties 'replica' not allowed"),
    ],
)
def test_wrong_values_are_named(values: Sequence[str], said: str) -> None:
    found = template(*values)
    assert found.returncode != 0
    assert said in found.stderr


# systemd


def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/anabranch/bin/anabranch", "/bin/true"))
    found = run("systemd-analyze", "verify", "--man=no", unit)
    assert (found.returncode, found.stderr) == (0, "")
    found = run("systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", unit)
    assert found.returncode == 0, found.stdout


def test_the_units_command_and_times_fit_the_node(tmp_path: Path) -> None:
    text = UNIT.read_text()
    (command,) = re.findall(r"^ExecStart=\S+ serve (.+)$", text, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", command)) == {"--config", "--data-dir", "--log-format"}
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop_s) > stop_limit_s(load({}, {}, None))
