"""Valid and invalid values of configs."""

import pytest

from broker.configs.definitions import ConfigDef, ConfigType
from protocol.errors import ErrorCode, KafkaError

RATIO = ConfigDef("ratio", ConfigType.DOUBLE, "0.5", "", minimum=0, maximum=1)
FREE = ConfigDef("free", ConfigType.DOUBLE, "0.5", "")


@pytest.mark.parametrize("definition", [RATIO, FREE])
@pytest.mark.parametrize("value", ["nan", "NaN", " -nan ", "inf", "-Infinity", "1e999"])
def test_a_number_must_be_finite(definition: ConfigDef, value: str) -> None:
    with pytest.raises(KafkaError) as refused:
        definition.check(value)
    assert refused.value.code == ErrorCode.INVALID_CONFIG
    expected = f"Invalid value {value} for configuration {definition.name}: Not a number of type DOUBLE"
    assert refused.value.message == expected


def test_finite_numbers_are_taken() -> None:
    for value in ("0", "0.5", " 1.0 ", "1e-3"):
        RATIO.check(value)
    FREE.check("-1e300")
