"""Control groups of this process (version 1 and 2), whose limits a container has instead of a machine of its own."""

from collections.abc import Iterator, Mapping
from pathlib import Path


def group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control groups, from its own group up to the mount point.

    `controller` is a name of version 1, such as `memory`; version 2 has one group for all. `root` is the root directory
    of the machine.
    """
    groups = _groups(read_text(root / "proc/self/cgroup"))
    for mount in read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = mount.partition(" - ")
        inside, point = before.split(" ")[3:5]
        kind, *rest = after.split(" ")
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and controller in rest[-1].split(","):
            group = groups.get(controller)
        else:
            continue
        yield from _group_folders(root / point.lstrip("/"), inside, group)


def _groups(text: str) -> Mapping[str, str]:
    """Return the path of the process's group by controller. Version 2 has one group, with an empty name."""
    found = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _group_folders(top: Path, inside: str, group: str | None) -> Iterator[Path]:
    """Yield the folders of a group and its parents. In a container the group may lie outside of the mount."""
    if group is not None:
        below = group.removeprefix(inside) if inside != "/" else group
        parts = [part for part in below.split("/") if part]
        if ".." not in parts:
            for count in range(len(parts), 0, -1):
                yield top.joinpath(*parts[:count])
    yield top


def read_text(path: Path) -> str:
    """Return the text of a file without white space around it; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
