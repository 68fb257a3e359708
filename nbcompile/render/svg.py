"""The three charts as inline SVG, for wherever no script may run: nbconvert, nbviewer, mail, the HTML file.

Colours of text and axes are ``currentColor``, so the charts fit a light and a dark page alike. Whoever points at a bar
sees all its figures, by the ``<title>`` elements that browsers show on their own.
"""

from __future__ import annotations

import math

from ..report import PHASE_TITLES, Report
from .series import (
    PHASE_COLOURS,
    Line,
    Section,
    Steady,
    compile_sections,
    crossings,
    decades,
    describe_bar,
    describe_phase,
    pay_back,
    phases_of,
    steady_times,
)
from .shapes import FAINT, WIDTH, drawing, legend, rectangle, words
from .units import count, decade_seconds, digits, escape_html, middle, ratio, seconds, spread_seconds, time_unit

_LEFT = 172
_RIGHT = 72  # room for the figure behind the longest bar
_ROW = 22
_LABEL = 20


def charts(report: Report, *, most: int | None = None) -> list[tuple[str, str]]:
    """Title and SVG of each chart for which the report has figures.

    Args:
        most: how many bars of regions a strategy may have; chosen to fit if ``None``.
    """
    drawn = []
    if sections := compile_sections(report, most=most):
        drawn.append(("Compile time by region and phase (s)", _compile_time(sections)))
    if times := steady_times(report):
        unit = time_unit(max(steady.seconds for steady in times))[1]
        drawn.append((f"Steady time per call ({unit}), and speed against eager", _steady_time(times)))
    if lines := pay_back(report):
        drawn.append(("Total time against number of calls", _pay_back(lines)))
    return drawn


def _compile_time(sections: list[Section]) -> str:
    phases = phases_of(sections)
    body, top = legend([(PHASE_TITLES[phase], PHASE_COLOURS[phase], None) for phase in phases])
    lengths = [sum(bar.phases.values()) for section in sections for bar in section.bars]
    rows = sum(len(section.bars) + bool(section.name) for section in sections)
    body += _axis(max(lengths), 1.0, top, top + rows * _ROW)
    y = float(top)
    for section in sections:
        if section.name:
            body.append(words(_LEFT - 8, y + 15, middle(section.name, _LABEL), anchor="end", bold=True))
            y += _ROW
        for bar in section.bars:
            about = describe_bar(section, bar)
            body.append(words(_LEFT - 8, y + 15, middle(bar.label, _LABEL), anchor="end", hint=about))
            x = float(_LEFT)
            for phase, taken in bar.phases.items():
                long = taken / max(lengths) * (WIDTH - _LEFT - _RIGHT)
                hint = [*about, describe_phase(bar, phase)]
                body.append(rectangle(x, y + 3, long, _ROW - 6, PHASE_COLOURS[phase], hint))
                x += long
            body.append(words(x + 6, y + 15, seconds(bar.seconds)))
            y += _ROW
    longest = max((bar for section in sections for bar in section.bars), key=lambda bar: bar.seconds)
    summary = f"Compile time of {len(lengths)} regions, the longest {middle(longest.label, _LABEL)} with "
    return drawing(y + 24, summary + seconds(longest.seconds), body)


def _steady_time(times: list[Steady]) -> str:
    row = _ROW + 4
    longest = max(steady.seconds + (steady.half_spread or 0.0) for steady in times)
    body = _axis(longest, time_unit(max(steady.seconds for steady in times))[0], 4, 4 + row * len(times))
    scale = (WIDTH - _LEFT - _RIGHT) / longest
    for index, steady in enumerate(times):
        y = 4 + row * index
        hint = [
            steady.name,
            spread_seconds(steady.seconds, steady.half_spread),
            *([f"median of {count(steady.repeats)} rounds"] if steady.repeats > 0 else []),
            *([steady.dispatch] if steady.dispatch else []),
        ]
        body.append(words(_LEFT - 8, y + 17, middle(steady.name, _LABEL), anchor="end", hint=hint))
        body.append(rectangle(_LEFT, y + 4, steady.seconds * scale, row - 8, steady.colour, hint))
        end = steady.seconds
        if steady.half_spread:
            end += steady.half_spread
            low, high = (_LEFT + max(0.0, edge) * scale for edge in (steady.seconds - steady.half_spread, end))
            middle_y = y + row / 2
            body.append(
                f'<path d="M{low:.1f} {middle_y - 4:.1f}v8M{low:.1f} {middle_y:.1f}H{high:.1f}'
                f'M{high:.1f} {middle_y - 4:.1f}v8" stroke="currentColor" stroke-width="1.5" fill="none"/>'
            )
        label = ratio(steady.speed) if steady.speed is not None else seconds(steady.seconds)
        body.append(words(_LEFT + end * scale + 8, y + 17, label, bold=steady.speed is not None))
    summary = ", ".join(f"{middle(steady.name, _LABEL)} {seconds(steady.seconds)}" for steady in times)
    return drawing(4 + row * len(times) + 24, f"Steady time per call: {summary}", body)


def _pay_back(lines: list[Line]) -> str:
    body, top = legend([(middle(line.name, _LABEL), line.colour, line.dash) for line in lines])
    left, bottom, right = 64, top + 230, WIDTH - 24
    totals = [total for line in lines for _, total in line.points]
    found = crossings(lines)
    lowest = math.log10(min(totals)) - 0.25 - 0.12 * len(found)  # room for the labels of the crossings
    highest = math.log10(max(totals)) + 0.1
    farthest = math.log10(lines[0].points[-1][0])

    def at_x(calls: float) -> float:
        return left + math.log10(calls) / farthest * (right - left)

    def at_y(total: float) -> float:
        return bottom - (math.log10(total) - lowest) / (highest - lowest) * (bottom - top)

    for decade in range(round(farthest) + 1):
        x = at_x(10**decade)
        body.append(f'<path d="M{x:.1f} {top}V{bottom}" {FAINT}/>')
        body.append(words(x, bottom + 16, _power(decade), anchor="middle", faint=True))
    for decade in decades(lowest, highest):
        y = at_y(10.0**decade)
        body.append(f'<path d="M{left} {y:.1f}H{right}" {FAINT}/>')
        body.append(words(left - 8, y + 4, decade_seconds(decade), anchor="end", faint=True))
    body.append(words((left + right) / 2, bottom + 34, "calls", anchor="middle", faint=True))
    for line in lines:
        path = "L".join(f"{at_x(calls):.1f} {at_y(total):.1f}" for calls, total in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        hint = f"<title>{escape_html(line.name)}: {seconds(line.cold)} + {seconds(line.steady)} a call</title>"
        body.append(f'<path d="M{path}" stroke="{line.colour}" stroke-width="2" fill="none"{dash}>{hint}</path>')
    for line, even, level in found:
        x, y, foot = at_x(even.calls), at_y(even.seconds), bottom - 4 - 16 * level
        body.append(f'<path d="M{x:.1f} {y:.1f}V{foot}" stroke="{line.colour}" stroke-dasharray="2,3"/>')
        body.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{line.colour}" stroke="currentColor">'
            f"<title>{escape_html(line.name)} pays back after {even.words}</title></circle>"
        )
        body.append(words(x + 5, foot, f"{middle(line.name, 14)}: {even.words}", bold=True))
    summary = "; ".join(f"{middle(line.name, _LABEL)} pays back after {even.words}" for line, even, _ in found)
    return drawing(bottom + 40, f"Total time against number of calls. {summary or 'Nothing pays back'}", body)


def _axis(longest: float, factor: float, top: float, bottom: float) -> list[str]:
    """A linear axis from zero to ``longest`` seconds with a few round figures, in units of ``factor`` seconds."""
    step = 10 ** math.floor(math.log10(longest / factor / 2))
    step = next(step * times for times in (1, 2, 5, 10) if longest / factor / (step * times) <= 5.5)
    drawn = []
    for tick in range(int(longest / factor / step) + 1):
        x = _LEFT + tick * step * factor / longest * (WIDTH - _LEFT - _RIGHT)
        drawn.append(f'<path d="M{x:.1f} {top}V{bottom}" {FAINT}/>')
        drawn.append(words(x, bottom + 16, f"{tick * step:.4g}", anchor="middle", faint=True))
    return drawn


def _power(decade: int) -> str:
    return f"{10**decade}" if decade < 4 else f"{digits(10 ** (decade % 3), 1)} {'kMG'[decade // 3 - 1]}"
