"""Number formats as data, and rounding to them."""

from mpt.formats.table import FORMATS, NumberFormat, format_of

__all__ = ["FORMATS", "NumberFormat", "format_of"]
