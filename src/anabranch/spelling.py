"""Suggestions for a name that is not known, of commands, settings, configs, APIs and the like. Pure."""

from collections.abc import Iterable


def near_text(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a question with the known ones that are near, or nothing.

    Upper and lower case are the same here.
    """
    from difflib import get_close_matches  # late: most names are known

    by_folded = {each.casefold(): each for each in known}
    near = [by_folded[each] for each in get_close_matches(name.casefold(), by_folded)]
    return f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
