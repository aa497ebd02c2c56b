"""The settings in the compose file are valid settings of a node."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from anabranch.broker.node.settings.sources import load, unknown_environment
from anabranch.broker.operator.cli.serve import stop_limit_s
from anabranch.spark.pipeline.toml_file import read_pipeline
from scripts.demo.delays import FLIGHT_SCHEMA

ROOT = Path(__file__).resolve().parents[2]


def compose_command() -> list[str]:
    """Docker's compose plug-in, or the older separate program; skips if both are missing."""
    if shutil.which("docker"):
        known = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if known.returncode == 0:
            return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither `docker compose` nor `docker-compose` is installed")


def test_compose_accepts_the_file() -> None:
    done = subprocess.run(
        [*compose_command(), "-f", str(ROOT / "docker-compose.yml"), "--profile", "spark", "config"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ANABRANCH_OBJECTS_STORE: s3" in done.stdout
    assert "org.apache.spark.deploy.worker.Worker" in done.stdout


def test_a_node_understands_its_environment() -> None:
    files = (ROOT / "docker-compose.yml").read_text() + (ROOT / "Dockerfile").read_text()
    environment = dict(re.findall(r"(ANABRANCH_\w+)[:=] ?(\S+)", files))
    assert environment, "the files set something"
    assert not unknown_environment(environment)
    settings = load({}, environment, None)
    assert settings.admin.host == "0.0.0.0"
    announced = {(each.port, each.advertised_host) for each in settings.listeners}
    assert announced == {(9092, "localhost"), (29092, "node")}  # for this machine, and for other containers
    assert all(each.host == "0.0.0.0" and not each.protocol.uses_tls for each in settings.listeners)
    assert settings.objects.store == "s3"
    (stop_s,) = re.findall(r"stop_grace_period: (\d+)s$", files, re.MULTILINE)
    assert int(stop_s) > stop_limit_s(settings)
    assert settings.objects.endpoint == "http://s3:7070"
    assert settings.catalog.url == "postgresql://anabranch:anabranch-secret@catalog/anabranch"


def test_the_pipeline_of_the_image_is_one() -> None:
    pipeline = read_pipeline(ROOT / "docs" / "flights.toml")
    assert pipeline.source.topics == ("flights",)
    assert (ROOT / "docs" / "flights.ddl").read_text().split() == FLIGHT_SCHEMA.split()
