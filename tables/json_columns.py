"""Strict JSON as Arrow columns: values come out as they were sent, or the record has an error.

Three ways, the quickest first, and each takes what the one before it doubts. `json_blocks` has Arrow's parser read
many texts. Then many texts are parsed as one list by Python's own parser, in which all numbers stay as they are
written; Arrow makes columns of texts from that, and casts them. Last, `json_values` decodes each text by itself: it
alone decides what is refused, and why. All return the same values.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import concat
from secrets import token_hex
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables import json_blocks
from anabranch.tables.json_casts import EXACT_MAX, DoubtError, any_of, cast_texts, demand, in_column
from anabranch.tables.json_values import INTEGER_BITS, json_reader, refuse_constant
from anabranch.tables.values import decode_column

ROWS: Final = 1024
"""Rows that Python's parser decodes together, or each by itself if any of them is in doubt."""
BYTES_MAX: Final = 8 << 20
"""Size of the texts that are decoded together. Parsed, they take several times as much."""
PAUSE_BLOCKS: Final = 15
"""Blocks that Arrow's parser is not tried on, after one of which it left most to Python's."""
NUMBER_MARK: Final = "\0"
"""Comes before each number, and cannot be in a text that has no escape for it."""
ESCAPED_MARK: Final = r"\u0000"
_marked = partial(concat, NUMBER_MARK)
"""Twice as fast as a function of Python."""


class _Repeated:
    """An object that has a name twice."""


@dataclass(slots=True)
class JsonDecoder:
    """Decodes texts. Fields that the schema does not have are left out. It can be pickled."""

    schema: pa.StructType
    zone: str
    """That of times without one."""
    _pause: int = field(default=0, init=False, repr=False, compare=False)
    """Blocks left for which Arrow's parser is not tried."""

    def __call__(self, texts: pa.Array) -> pa.StructArray:
        """Return a column of `values.decoded_type` from a binary column."""
        if not json_blocks.reads(self.schema):
            return self._by_python(texts)
        starts = range(0, max(1, len(texts)), json_blocks.ROWS)
        return pa.concat_arrays([self._block(texts[start : start + json_blocks.ROWS]) for start in starts])

    def _block(self, texts: pa.Array) -> pa.StructArray:
        if self._pause:
            self._pause -= 1
            return self._by_python(texts)
        data, is_read = json_blocks.read_block(texts, self.schema, self.zone)
        if is_read.all():
            return _without_errors(data)
        left = np.flatnonzero(~is_read)
        if 2 * len(left) > len(texts):
            self._pause = PAUSE_BLOCKS
        place = np.empty(len(texts), np.int64)
        place[is_read] = np.arange(len(data))
        place[left] = np.arange(len(data), len(texts))
        return pa.concat_arrays([_without_errors(data), self._by_python(texts.take(pa.array(left)))]).take(
            pa.array(place)
        )

    def _by_python(self, texts: pa.Array) -> pa.StructArray:
        starts = range(0, max(1, len(texts)), ROWS)
        return pa.concat_arrays([self._decoded(texts[start : start + ROWS]) for start in starts])

    def _decoded(self, texts: pa.Array) -> pa.StructArray:
        try:
            return self._together(texts)
        except (DoubtError, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
            return decode_column(texts, json_reader(self.schema, self.zone), self.schema)

    def _together(self, texts: pa.Array) -> pa.StructArray:
        """Return the column for some texts. Raises DoubtError, and what Python's JSON and Arrow raise."""
        if texts.nbytes > BYTES_MAX:
            raise DoubtError
        rows = _parsed(texts.to_pylist(), has_maps=_has_maps(self.schema))
        _refuse_others(rows, self.schema)
        # A text is no boolean here, and neither is an object, a list or a boolean a text.
        transported = pa.array(rows, _transported(self.schema))
        if transported.null_count != texts.null_count:
            raise DoubtError
        return _without_errors(in_column(transported, self.schema, self.zone, _cast))


def _without_errors(data: pa.StructArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([data, pa.nulls(len(data), pa.string())], names=["data", "error"])


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_maps(part.type) for part in kind)
    return pa.types.is_map(kind) or (pa.types.is_list(kind) and _has_maps(kind.value_type))


def _parsed(texts: list[bytes | None], *, has_maps: bool) -> list[Any]:
    """Return values of texts. Raises DoubtError and ValueError.

    The texts are separated by an unguessable one: if a text were not a whole value, the separators would be misplaced.
    """
    mark = token_hex(16)
    between = f',"{mark}",'.encode()
    text = b"".join(
        (b"[", between.join([b"null" if each is None else each for each in texts]), between[:-1], b"]")
    ).decode()
    if ESCAPED_MARK in text:
        raise DoubtError
    decoder = json.JSONDecoder(
        parse_constant=refuse_constant,
        parse_int=_marked,
        parse_float=_marked,
        object_pairs_hook=_object if has_maps else None,
    )
    found: list[Any] = decoder.decode(text)
    if len(found) != 2 * len(texts) or found[1::2] != [mark] * len(texts):
        raise DoubtError
    return found[::2]


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated()


def _transported(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type of a column of parsed JSON: texts in place of scalars."""
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _transported(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_transported(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _transported(kind.item_type))
    return pa.bool_() if pa.types.is_boolean(kind) else pa.string()


def _refuse_others(values: Iterable[Any], kind: pa.DataType) -> None:
    """Raise DoubtError if a value is not the object or list of its column: Arrow makes lists of texts, too."""
    values = [each for each in values if each is not None]
    if not set(map(type, values)) <= {list if pa.types.is_list(kind) else dict}:
        raise DoubtError
    if pa.types.is_struct(kind):
        for part in kind:
            if pa.types.is_nested(part.type):
                _refuse_others([each.get(part.name) for each in values], part.type)
    elif pa.types.is_list(kind):
        if pa.types.is_nested(kind.value_type):
            _refuse_others(chain.from_iterable(values), kind.value_type)
    elif pa.types.is_nested(kind.item_type):
        _refuse_others(chain.from_iterable(each.values() for each in values), kind.item_type)


def _cast(array: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Return texts, those of numbers with a mark, as a column. Raises DoubtError, and what Arrow raises."""
    if pa.types.is_boolean(kind):
        return array
    without_marks = pc.ascii_ltrim(array, NUMBER_MARK)
    if pa.types.is_string(kind):
        return without_marks
    if pa.types.is_decimal(kind):
        return demand(without_marks, _decimal_pattern(kind)).cast(kind)
    is_number = pc.starts_with(array, NUMBER_MARK)
    if kind in EXACT_MAX or kind in INTEGER_BITS:
        if any_of(pc.invert(is_number)):
            raise DoubtError
        return _floats(without_marks, kind) if kind in EXACT_MAX else without_marks.cast(kind)
    if any_of(is_number):
        raise DoubtError
    return cast_texts(array, kind, zone)


def _decimal_pattern(kind: pa.Decimal128Type) -> str:
    """Return a pattern of numbers without exponents whose digits the type has: Arrow reads longer ones wrongly."""
    before = kind.precision - kind.scale
    whole = f"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    return rf"-?{whole}(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else f"-?{whole}"


def _floats(numbers: pa.Array, kind: pa.DataType) -> pa.Array:
    values = numbers.cast(kind)
    is_large = pc.greater_equal(pc.abs(values), EXACT_MAX[kind])
    if any_of(is_large) and (
        any_of(pc.is_inf(values)) or any_of(pc.match_substring_regex(pc.filter(numbers, is_large), "^-?[0-9]+$"))
    ):
        raise DoubtError
    is_zero = pc.equal(values, 0)
    if any_of(is_zero) and any_of(pc.match_substring_regex(pc.filter(numbers, is_zero), "^-?[0.]*[1-9]")):
        raise DoubtError
    return values
