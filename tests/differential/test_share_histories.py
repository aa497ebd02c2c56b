"""Random histories of share groups against Apache Kafka, step by step."""

import pytest

from tests.differential.answers import differences
from tests.differential.peer import Peer
from tests.differential.script import run_script
from tests.differential.scripts.share_fetches import history

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

SEEDS = 6
REQUESTS = 250


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories_are_apache_kafkas(kafka: Peer, ours: Peer, seed: int) -> None:
    function = history(seed, REQUESTS)
    theirs, mine = run_script(function, kafka), run_script(function, ours)
    for one, other in zip(theirs, mine, strict=False):
        assert one.name == other.name
        assert not differences(one.answer, other.answer), one.name
    assert len(theirs) == len(mine) >= REQUESTS
