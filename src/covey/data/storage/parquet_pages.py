"""How much memory does a column of a Parquet row group take? The headers of its pages say so, before any is decoded."""

from __future__ import annotations

from typing import Any, NamedTuple

from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource

LARGEST_PAGE, GROWTH = 1 << 26, 16  # bytes of a page that may have been fewer than a sixteenth of that in the file
LARGEST_HEADER = 1 << 16  # bytes; statistics in it may be long
USUAL_HEADER = 1 << 10  # bytes that are read at first
DEEPEST = 8  # structures in structures
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
LEVELS = 8  # bytes of a value besides itself: whether it is there, and where lists begin
DATA, INDEX, DICTIONARY, DATA_V2 = 0, 1, 2, 3  # kinds of pages
DETAILS = {DATA: 5, INDEX: 6, DICTIONARY: 7, DATA_V2: 8}  # Parquet's thrift file: the field of a header for each kind
ENCODING = {DATA: 2, DICTIONARY: 2, DATA_V2: 4}  # the field in that one
DELTA_BYTE_ARRAY = 7  # an encoding in which a value may be that before it, and a few bytes


class PageHeader(NamedTuple):
    """One page, as its header describes it."""

    kind: int
    uncompressed: int
    compressed: int
    values: int
    encoding: int


class ColumnSize(NamedTuple):
    """What a column of a row group takes in memory at most; and, where values may repeat in full, one value."""

    total: int
    repeated: int


def column_size(source: ShardSource, entry: ShardEntry, chunk: Any, width: int, shared: bool) -> ColumnSize:
    """Walk over the pages of a column; ShardError if they are not what the file's metadata says.

    Args:
        chunk: The metadata of the column in its row group.
        width: Of a value of fixed size; 0 for others.
        shared: Whether values of a dictionary stay in it, and are not copied for every row.
    """
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (first := chunk.dictionary_page_offset or 0) < at:
        at = first
    end, values, total, repeated, has_dictionary = at + chunk.total_compressed_size, 0, 0, 0, False
    while values < chunk.num_values:
        if not 0 <= at < end <= entry.size:
            raise source.error(entry.name, f"has {values} values of {chunk.path_in_schema!r}; it says otherwise")
        page, header = _page(source, entry, at, end)
        if not 0 <= page.uncompressed <= max(LARGEST_PAGE, GROWTH * page.compressed):
            grown = f"{page.compressed} bytes, which say that they are {page.uncompressed}"
            raise source.error(entry.name, f"has a page of {grown}: at most {LARGEST_PAGE} are made of so few")
        total += page.uncompressed
        if page.kind == DICTIONARY:
            has_dictionary = True
            repeated = repeated if shared else max(repeated, page.uncompressed)
        elif page.kind in (DATA, DATA_V2):
            values += max(0, page.values)
            if page.encoding == DELTA_BYTE_ARRAY:
                repeated = max(repeated, page.uncompressed)
        at += header + max(0, page.compressed)
    if values != chunk.num_values or has_dictionary != bool(chunk.has_dictionary_page):
        raise source.error(entry.name, f"has other pages of {chunk.path_in_schema!r} than it says")
    return ColumnSize(total + values * (LEVELS + (width or WIDTHS[chunk.physical_type])), 0 if width else repeated)


def _page(source: ShardSource, entry: ShardEntry, at: int, end: int) -> tuple[PageHeader, int]:
    """The page at this place, and how long its header is."""
    for size in (USUAL_HEADER, LARGEST_HEADER):
        reader = ThriftReader(source.read(entry.name, at, min(at + size, end)))
        try:
            fields = reader.structure()
            kind = fields[1]
            details = fields[DETAILS[kind]]
            numbers = kind, fields[2], fields[3], details.get(1, 0), details.get(ENCODING.get(kind, 0), 0)
            # of fields for several kinds, and of numbers beyond 32 bits, other readers see another part
            if len(fields.keys() & DETAILS.values()) == 1 and all(_natural(number) for number in numbers):
                return PageHeader(*numbers), reader.at
        except (AttributeError, IndexError, KeyError, TypeError):
            continue
    raise source.error(entry.name, f"has no header of a page at byte {at}")


def _natural(number: Any) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 31


class ThriftReader:
    """Structures of Thrift's compact protocol, as far as headers of pages need them; IndexError if they do not end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a structure, by their numbers."""
        found, number = dict[int, Any](), 0
        if depth > DEEPEST:
            raise IndexError("too deep")
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole()
            if number in found or not 0 < number < 1 << 15:  # readers differ in what they make of that
                raise KeyError("a field that is there twice, or that no structure has")
            found[number] = self._value(head & 15, depth)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while shift < 70:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise IndexError("a number without an end")

    def _whole(self) -> int:
        found = self._varint()
        return found >> 1 ^ -(found & 1)

    def _skip(self, size: int) -> None:
        self.at += size
        if self.at > len(self.data):
            raise IndexError("it ends too early")

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._whole()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            return self._skip(self._varint())
        if kind == 12:
            return self.structure(depth + 1)
        raise KeyError("headers of pages have no lists")
