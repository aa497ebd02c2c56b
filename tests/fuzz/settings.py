"""Settings files (TOML): settings, or one line that says what is wrong."""

import tempfile
from pathlib import Path
from random import Random

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.names import all_settings
from anabranch.broker.node.settings.sources import load
from tests.fuzz.target import Target, check_message
from tests.fuzz.toml_values import STRANGE, random_value

FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-settings-")
FILE = Path(FOLDER.name) / "node.toml"


def check(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        load({}, {}, FILE)
    except SettingsError as error:
        check_message(error)


def seeds() -> list[bytes]:
    whole = "\n".join(
        f"[{area}]\n" + "\n".join(f"{each.name} = 1" for each in all_settings() if each.area == area)
        for area in dict.fromkeys(each.area for each in all_settings())
    )
    return [
        b'[node]\ndata_dir = "/var/lib/anabranch"\n\n[wal]\ncapacity_bytes = "4GiB"\n',
        b'[stores.cold]\ntype = "s3"\nbucket = "archive"\n[objects]\nstore = "cold"\n',
        whole.encode(),
    ]


def fresh(random: Random) -> bytes:
    chosen = sorted(random.sample(all_settings(), random.randrange(1, 4)), key=lambda each: each.area)
    lines, area = [], ""
    for each in chosen:
        if each.area != area:
            area = each.area
            lines.append(f"[{area}]")
        lines.append(f"{each.name} = {random_value(random)}")
    return "\n".join(lines).encode()


WORDS = [
    *(f"{each.name} = ".encode() for each in all_settings()),
    *(f"\n[{area}]\n".encode() for area in {each.area for each in all_settings()}),
    *STRANGE,
    b"[stores.x]\n",
    b"[[node]]\n",
]
TARGET = Target(check, seeds, quick_inputs=600, fresh=fresh, words=WORDS, close=FOLDER.cleanup)
