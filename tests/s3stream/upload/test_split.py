"""Objects that an upload block is split into."""

from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.model import ObjectKind
from anabranch.s3stream.upload.split import RunSize, plan_split


@given(
    st.lists(
        st.builds(RunSize, st.integers(0, 1000), st.integers(0, 100), st.sampled_from(["a", "b"]), st.booleans()),
        unique_by=lambda run: run.stream_id,
    ),
    st.integers(1, 100),
)
def test_split_puts_each_run_in_one_object_of_its_store(runs: list[RunSize], split_bytes: int) -> None:
    plans = plan_split(runs, split_bytes)
    by_id = {run.stream_id: run for run in runs}
    assert sorted(key for plan in plans for key in plan.stream_ids) == sorted(by_id)
    for plan in plans:
        assert list(plan.stream_ids) == sorted(plan.stream_ids)
        assert {by_id[key].store for key in plan.stream_ids} == {plan.store}
        for key in plan.stream_ids:
            run = by_id[key]
            assert (run.uploads_alone or run.size_bytes >= split_bytes) == (plan.kind is ObjectKind.SO)
        assert plan.kind is ObjectKind.SSO or len(plan.stream_ids) == 1
    sets = [plan.store for plan in plans if plan.kind is ObjectKind.SSO]
    assert len(sets) == len(set(sets))
