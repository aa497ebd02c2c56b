"""`anabranch security rotate-secret`, while two nodes run."""

import asyncio
from pathlib import Path

from click.testing import CliRunner

from anabranch.broker.operator.cli.security import security
from tests.support.node import running_nodes


async def test_nodes_use_the_new_secret_without_a_stop(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        assert first.serving.links is not None
        assert await first.serving.links.reaches(second.serving.members.own)
        before = await first.serving.catalog.current_secret()
        arguments = ["rotate-secret", "--catalog-url", f"sqlite:///{tmp_path}/catalog.db"]
        found = await asyncio.to_thread(CliRunner().invoke, security, arguments)
        assert found.exit_code == 0, found.output
        assert before.hex() not in found.output
        after = await first.serving.catalog.current_secret()
        assert len(after) == len(before)
        assert after != before
        for node in (first, second):
            await node.serving.membership.catch_up()
        for one, other in ((first, second), (second, first)):
            assert one.serving.links is not None
            assert await one.serving.links.reaches(other.serving.members.own)
