"""Numbers and strings as a reader sees them: three digits, a fitting unit, nothing that could harm the page.

A report may come from anywhere. Its strings can hold terminal escapes, lone surrogates or a megabyte of text, its
whole numbers can be longer than a float; what leaves this module is short, printable and on one line.
"""

from __future__ import annotations

import html
import math
import re
import unicodedata

#: Shown where a figure is absent.
ABSENT = "–"

#: The longest piece of a report's text that is shown.
LONGEST = 300

# Outside of these no figure is a measurement, and sums, products and logarithms would fail while a picture is laid out.
_SMALLEST, _LARGEST = 1e-30, 1e100

# Control characters, lone surrogates, and marks that reorder or hide text on screen.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]+")

#: From which number of seconds on a time is told in a longer unit, and that: 90 s and 267 s are easier to compare.
_LONG_TIMES = ((48 * 3600.0, 24 * 3600.0, "d"), (3600.0, 3600.0, "h"), (600.0, 60.0, "min"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_SIZE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_COUNT_UNITS = ((1e9, " B"), (1e6, " M"), (1e3, " k"), (1.0, ""))


def amount(value: object) -> float | None:
    """``value`` as a float if it can be an amount of time, memory or things, else ``None``: shown as absent."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not 0.0 <= number <= _LARGEST:  # nan included
        return None
    return number if number >= _SMALLEST else 0.0


def digits(number: float, significant: int = 3) -> str:
    """``number`` with three significant digits."""
    if number == 0:
        return "0"
    rounded = float(f"{number:.{significant - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if not -4 <= exponent < 7:
        return f"{number:.{significant - 1}e}"
    return f"{rounded:.{max(0, significant - 1 - exponent)}f}"


def clock(value: object) -> str:
    """A time that is still running: ``"8.4 s"``, ``"2 min 5 s"``: no more digits than can be read."""
    number = amount(value)
    if number is None:
        return ABSENT
    if number < 59.95:
        return f"{number:.1f} s"
    whole = round(number)
    return f"{count(whole // 60)} min {whole % 60} s"


def time_unit(longest: float) -> tuple[float, str]:
    """The unit in which ``longest`` seconds are best told, as its length in seconds and its name."""
    return _unit(longest, _TIME_UNITS)


def seconds(value: object) -> str:
    """A time: ``"1.23 ms"``, ``"267 s"``, ``"19.4 h"``."""
    number = amount(value)
    for least, factor, unit in _LONG_TIMES:
        if number is not None and number >= least:
            return f"{digits(number / factor)} {unit}"
    return _in_units(value, _TIME_UNITS, " ", zero="0 s")


def decade_seconds(decade: int) -> str:
    """A power of ten of seconds for an axis: ``"10 ms"``."""
    factor, unit = time_unit(10.0**decade)
    return f"{count(round(10.0**decade / factor)) if decade >= 0 else f'{10.0**decade / factor:g}'} {unit}"


def spread_seconds(value: object, half_spread: float | None) -> str:
    """A time and how far it varied, in one unit: ``"12.3 ± 0.21 ms"``."""
    number = amount(value)
    if number is None or half_spread is None:
        return seconds(value)
    factor, unit = time_unit(number or half_spread)
    return f"{digits(number / factor)} ± {digits(half_spread / factor, 2)} {unit}"


def size(value: object) -> str:
    """An amount of memory: ``"1.23 GB"``."""
    return _in_units(value, _SIZE_UNITS, " ", zero="0 B")


def short_count(value: object) -> str:
    """A large number of things: ``"135 M"``."""
    return _in_units(value, _COUNT_UNITS, "", zero="0")


def count(value: object) -> str:
    """A number of things, every digit of it as long as a person would read them."""
    number = amount(value)
    if number is None:
        return ABSENT
    return str(int(number)) if number < 1e12 else digits(number)


def ratio(value: float | None) -> str:
    """How many times as fast: ``"1.42x"``."""
    return ABSENT if value is None else f"{digits(value)}x"


def difference(value: object) -> str:
    """The size of a deviation: ``"1.19e-06"``."""
    number = amount(value)
    if number is None:
        return ABSENT
    return "0" if number == 0 else f"{number:.2e}"


def clean(text: object, limit: int = LONGEST) -> str:
    """A report's text on one line, printable and at most ``limit`` characters long."""
    if not isinstance(text, str):
        return brief(text, limit)
    shown = " ".join(_UNPRINTABLE.sub(" ", text[: 4 * limit]).split())
    if len(shown) > limit or len(text) > 4 * limit:
        return shown[: limit - 1].rstrip() + "…"
    return shown


def middle(text: object, limit: int) -> str:
    """Like :func:`clean`, but what is left out is the middle: a module's path tells most at its ends."""
    whole = text if isinstance(text, str) else brief(text)
    if len(whole) > 2 * LONGEST:
        whole = f"{whole[:LONGEST]} {whole[-LONGEST:]}"
    shown = clean(whole, 2 * LONGEST + 1)
    if len(shown) <= limit:
        return shown
    head = (limit - 1) // 3
    return f"{shown[:head]}…{shown[len(shown) - (limit - 1 - head) :]}"


def brief(value: object, limit: int = LONGEST, depth: int = 2) -> str:
    """Any JSON value in a few words: two levels of nesting, eight items of each."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)):
        number = amount(abs(value))
        if number is None:
            return ABSENT
        return str(value) if isinstance(value, int) and number < 1e15 else f"{value:.6g}"
    if isinstance(value, (dict, list, tuple)):
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        if depth == 0 and value:
            return f"{opening}…{closing}"
        items = (
            [f"{clean(key, 40)}: {brief(item, 80, depth - 1)}" for key, item in list(value.items())[:8]]
            if isinstance(value, dict)
            else [brief(item, 80, depth - 1) for item in value[:8]]
        )
        more = ["…"] if len(value) > 8 else []
        return clean(opening + ", ".join(items + more) + closing, limit)
    return clean(value if isinstance(value, str) else type(value).__name__, limit)


def width(text: str) -> int:
    """How many columns ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def escape_html(text: object, limit: int = LONGEST) -> str:
    """A report's text, safe between tags and inside a quoted attribute."""
    return html.escape(clean(text, limit), quote=True)


def _in_units(value: object, units: tuple[tuple[float, str], ...], gap: str, *, zero: str) -> str:
    number = amount(value)
    if number is None:
        return ABSENT
    if number == 0:
        return zero
    factor, name = _unit(number, units)
    return f"{digits(number / factor)}{gap}{name}"


def _unit(number: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    rounded = float(f"{number:.2e}")  # 999.6 ms is 1.00 s once three digits are left
    return next((unit for unit in units if rounded >= unit[0]), units[-1])
