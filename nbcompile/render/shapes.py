"""Shapes of inline SVG: what all drawings are made of.

Colours of text and axes are ``currentColor``, so a drawing fits a light and a dark page alike.
"""

from __future__ import annotations

from .units import escape_html

WIDTH = 640
FAINT = 'stroke="currentColor" stroke-opacity="0.18"'


def drawing(height: float, summary: str, body: list[str]) -> str:
    title = escape_html(summary)
    return (
        f'<svg class="nbc-chart" role="img" aria-label="{title}" viewBox="0 0 {WIDTH} {height:.0f}" width="100%" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor" '
        f'xmlns="http://www.w3.org/2000/svg"><title>{title}</title>{"".join(body)}</svg>'
    )


def legend(entries: list[tuple[str, str, str | None]]) -> tuple[list[str], int]:
    """A legend in as many lines as it needs, and the height of it. An entry with dashes is drawn as a line."""
    drawn, x, y = [], 8.0, 0
    for name, colour, dash in entries:
        room = 34 + 6.6 * len(name)
        if x + room > WIDTH and x > 8:
            x, y = 8.0, y + 20
        if dash is None:
            drawn.append(f'<rect x="{x:.1f}" y="{y + 4}" width="12" height="12" fill="{colour}"/>')
        else:
            pattern = f' stroke-dasharray="{dash}"' if dash else ""
            drawn.append(f'<path d="M{x - 4:.1f} {y + 10}h18" stroke="{colour}" stroke-width="2"{pattern}/>')
        drawn.append(words(x + 18, y + 14, name))
        x += room
    return drawn, y + 30


def rectangle(x: float, y: float, width: float, height: float, colour: str, hint: list[str]) -> str:
    about = "\n".join(escape_html(line) for line in hint)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{colour}">'
        f"<title>{about}</title></rect>"
    )


def words(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    bold: bool = False,
    faint: bool = False,
    hint: list[str] | None = None,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    opacity = ' fill-opacity="0.75"' if faint else ""
    about = f"<title>{chr(10).join(escape_html(line) for line in hint)}</title>" if hint else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}{opacity}>{about}{escape_html(text)}</text>'
