"""The secret key of delegation tokens: where it comes from, and how mistakes are reported."""

from pathlib import Path

import pytest

from anabranch.broker.kafka.sasl.delegation_tokens import TokenKeyError, read_key
from anabranch.broker.node.settings.area import Secret
from anabranch.broker.node.settings.delegation_token_area import DelegationTokenSettings
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.sources import load

KEY = "key-of-the-delegation-tokens-0123456789"


def test_the_key_is_in_the_environment_or_the_first_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\nmore\n")
    assert read_key(DelegationTokenSettings(secret_key_file=file)) == KEY.encode()
    assert read_key(load({}, {"ANABRANCH_DELEGATION_TOKEN_SECRET_KEY": KEY}).delegation_token) == KEY.encode()


def test_without_a_key_tokens_are_off() -> None:
    assert read_key(DelegationTokenSettings()) == b""
    assert read_key(DelegationTokenSettings(secret_key=Secret(""))) == b""


@pytest.mark.parametrize("content", [b"", b"\n", b"too-short-marked", b"\xff" * 40])
def test_a_key_that_cannot_be_used_stops_the_start_in_one_line_without_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(TokenKeyError, match=r"^setting delegation_token.secret_key_file: .*/key: ") as error:
        read_key(DelegationTokenSettings(secret_key_file=file))
    assert "marked" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_short_key_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenKeyError, match="secret_key: the key has less than 32 characters"):
        read_key(DelegationTokenSettings(secret_key=Secret("x" * 31)))
    with pytest.raises(TokenKeyError, match="No such file"):
        read_key(DelegationTokenSettings(secret_key_file=tmp_path / "none"))


def test_a_key_in_two_places_is_refused() -> None:
    environment = {
        "ANABRANCH_DELEGATION_TOKEN_SECRET_KEY": KEY,
        "ANABRANCH_DELEGATION_TOKEN_SECRET_KEY_FILE": "/key",
    }
    with pytest.raises(SettingsError, match="secret_key_file: set beside delegation_token"):
        load({}, environment)
