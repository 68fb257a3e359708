/**
 * The three charts as drawings: where compile time went, what it bought, and when it is paid back. They are those of
 * nbcompile/render/svg.py; here every bar and line can be reached by keyboard, and tells its figures below the chart.
 */
import { svg, type Attributes } from './dom';
import { PHASE_TITLES, type IReport } from './report';
import {
  compileSections,
  describeBar,
  describePhase,
  payBack,
  PHASE_COLOURS,
  phasesOf,
  steadyTimes,
  type IBar,
  type ILine,
  type ISection,
  type ISteady
} from './series';
import { count, decadeSeconds, middle, plural, ratio, seconds, spreadSeconds, timeUnit } from './units';

const WIDTH = 640;
const LEFT = 172;
const RIGHT = 72; // room for the figure behind the longest bar
const ROW = 22;
const LABEL = 22;

/** A chart and its title; the part's name keeps two states of one chart together. */
export interface IChart {
  part: string;
  title: string;
  drawing: SVGElement;
}

/** Each chart for which the report has figures. */
export function steadyCharts(report: IReport): IChart[] {
  const charts: IChart[] = [];
  const times = steadyTimes(report);
  if (times.length > 0) {
    const unit = timeUnit(Math.max(...times.map(steady => steady.seconds)))[1];
    const title = `Steady time per call (${unit}), and speed against eager`;
    charts.push({ part: 'steady', title, drawing: steadyChart(times) });
  }
  const lines = payBack(report);
  if (lines.length > 0) {
    charts.push({ part: 'pay-back', title: 'Total time against number of calls', drawing: payBackChart(lines) });
  }
  return charts;
}

/** Compile time by region and phase, if anything was compiled. */
export function compileCharts(report: IReport): IChart[] {
  const sections = compileSections(report);
  return sections.length > 0
    ? [{ part: 'compile', title: 'Compile time by region and phase (s)', drawing: compileChart(sections) }]
    : [];
}

function compileChart(sections: readonly ISection[]): SVGElement {
  const { body, top } = legend(
    phasesOf(sections).map(phase => [PHASE_TITLES.get(phase) ?? phase, PHASE_COLOURS.get(phase) ?? '', null])
  );
  const bars = sections.flatMap(section => section.bars);
  const longest = Math.max(...bars.map(lengthOf));
  const rows = sections.reduce((sum, { name, bars: own }) => sum + own.length + Number(name !== ''), 0);
  body.push(...axis(longest, 1, top, top + rows * ROW));
  let y = top;
  for (const section of sections) {
    if (section.name) {
      body.push(words(LEFT - 8, y + 15, middle(section.name, LABEL), { 'text-anchor': 'end', 'font-weight': 600 }));
      y += ROW;
    }
    for (const bar of section.bars) {
      body.push(compileRow(section, bar, y, longest));
      y += ROW;
    }
  }
  const most = bars.reduce((found, bar) => (bar.seconds > found.seconds ? bar : found));
  const summary = `Compile time of ${bars.length} regions, the longest ${middle(most.label, LABEL)} with `;
  return drawing(y + 24, summary + seconds(most.seconds), body);
}

function compileRow(section: ISection, bar: IBar, y: number, longest: number): SVGElement {
  const about = describeBar(section, bar);
  const each = [...bar.phases.keys()].map(phase => describePhase(bar, phase));
  const drawn: SVGElement[] = [words(LEFT - 8, y + 15, middle(bar.label, LABEL), { 'text-anchor': 'end' })];
  let x = LEFT;
  [...bar.phases].forEach(([phase, taken], index) => {
    const long = (taken / longest) * (WIDTH - LEFT - RIGHT);
    const hint = [...about, each[index] ?? ''].join('\n');
    drawn.push(rectangle(x, y + 3, long, ROW - 6, PHASE_COLOURS.get(phase) ?? '', hint));
    x += long;
  });
  drawn.push(words(x + 6, y + 15, seconds(bar.seconds)));
  return pointed(y, ROW, [...about, ...each], drawn);
}

function steadyChart(times: readonly ISteady[]): SVGElement {
  const row = ROW + 4;
  const longest = Math.max(...times.map(({ seconds: taken, halfSpread }) => taken + (halfSpread ?? 0)));
  const slowest = Math.max(...times.map(steady => steady.seconds));
  const body = axis(longest, timeUnit(slowest)[0], 4, 4 + row * times.length);
  const scale = (WIDTH - LEFT - RIGHT) / longest;
  times.forEach((steady, index) => {
    const y = 4 + row * index;
    const about = [steady.name, spreadSeconds(steady.seconds, steady.halfSpread)];
    if (steady.speed !== null) {
      about.push(`${ratio(steady.speed)} the speed of eager`);
    }
    if (steady.repeats) {
      about.push(`median of ${count(steady.repeats)} rounds`);
    }
    if (steady.dispatch) {
      about.push(steady.dispatch);
    }
    const drawn = [
      words(LEFT - 8, y + 17, middle(steady.name, LABEL), { 'text-anchor': 'end' }),
      rectangle(LEFT, y + 4, steady.seconds * scale, row - 8, steady.colour, about.join('\n'))
    ];
    let end = steady.seconds;
    if (steady.halfSpread) {
      const low = LEFT + Math.max(0, steady.seconds - steady.halfSpread) * scale;
      end += steady.halfSpread;
      drawn.push(whisker(low, LEFT + end * scale, y + row / 2));
    }
    const label = steady.speed === null ? seconds(steady.seconds) : ratio(steady.speed);
    const weight = steady.speed === null ? null : 600;
    drawn.push(words(LEFT + end * scale + 8, y + 17, label, { 'font-weight': weight }));
    body.push(pointed(y, row, about, drawn));
  });
  const summary = times.map(({ name, seconds: taken }) => `${middle(name, LABEL)} ${seconds(taken)}`).join(', ');
  return drawing(4 + row * times.length + 24, `Steady time per call: ${summary}`, body);
}

function whisker(low: number, high: number, y: number): SVGElement {
  const path = `M${at(low)} ${at(y - 4)}v8M${at(low)} ${at(y)}H${at(high)}M${at(high)} ${at(y - 4)}v8`;
  return svg('path', { d: path, stroke: 'currentColor', 'stroke-width': 1.5, fill: 'none' });
}

function payBackChart(lines: readonly ILine[]): SVGElement {
  const { body, top } = legend(lines.map(line => [middle(line.name, LABEL), line.colour, line.dash]));
  const [left, bottom, right] = [64, top + 230, WIDTH - 24];
  const totals = lines.flatMap(line => line.points.map(([, total]) => total));
  const crossings = lines.flatMap(line => (line.even === null ? [] : [{ line, even: line.even }]));
  crossings.sort((a, b) => a.even.calls - b.even.calls);
  const lowest = Math.log10(Math.min(...totals)) - 0.25 - 0.12 * crossings.length; // room for the crossings' labels
  const highest = Math.log10(Math.max(...totals)) + 0.1;
  const points = lines[0]?.points ?? [];
  const farthest = Math.log10(points[points.length - 1]?.[0] ?? 10);
  const atX = (calls: number): number => left + (Math.log10(calls) / farthest) * (right - left);
  const atY = (total: number): number => bottom - ((Math.log10(total) - lowest) / (highest - lowest)) * (bottom - top);

  for (let decade = 0; decade <= Math.round(farthest); decade += 1) {
    const x = atX(10 ** decade);
    body.push(grid(`M${at(x)} ${top}V${bottom}`));
    body.push(words(x, bottom + 16, power(decade), { 'text-anchor': 'middle', 'fill-opacity': 0.75 }));
  }
  for (const decade of decades(lowest, highest)) {
    const y = atY(10 ** decade);
    body.push(grid(`M${left} ${at(y)}H${right}`));
    body.push(words(left - 8, y + 4, decadeSeconds(decade), { 'text-anchor': 'end', 'fill-opacity': 0.75 }));
  }
  body.push(words((left + right) / 2, bottom + 34, 'calls', { 'text-anchor': 'middle', 'fill-opacity': 0.75 }));
  for (const line of lines) {
    const path = line.points.map(([calls, total]) => `${at(atX(calls))} ${at(atY(total))}`).join('L');
    const about = [`${line.name}: ${seconds(line.cold)} + ${seconds(line.steady)} a call`];
    if (line.even !== null) {
      about.push(`pays back after ${plural(line.even.calls, 'call')}`);
    }
    const stroke = { stroke: line.colour, 'stroke-width': 2, fill: 'none', 'stroke-dasharray': line.dash || null };
    body.push(told(about, [svg('path', { d: `M${path}`, ...stroke }, svg('title', {}, about.join('\n')))]));
  }
  crossings.forEach(({ line, even }, level) => {
    const [x, y, foot] = [atX(even.calls), atY(even.seconds), bottom - 4 - 16 * level];
    const calls = plural(even.calls, 'call');
    body.push(
      svg('path', { d: `M${at(x)} ${at(y)}V${foot}`, stroke: line.colour, 'stroke-dasharray': '2,3' }),
      svg(
        'circle',
        { cx: at(x), cy: at(y), r: 5, fill: line.colour, stroke: 'currentColor' },
        svg('title', {}, `${line.name} pays back after ${calls}`)
      ),
      words(x + 5, foot, `${middle(line.name, 14)}: ${calls}`, { 'font-weight': 600 })
    );
  });
  const paying = crossings.map(({ line, even }) => `${middle(line.name, LABEL)} after ${plural(even.calls, 'call')}`);
  const summary = paying.length > 0 ? `pays back: ${paying.join('; ')}` : 'Nothing pays back';
  return drawing(bottom + 40, `Total time against number of calls. ${summary}`, body);
}

/** A legend in as many lines as it needs, and the height of it. An entry with dashes is drawn as a line. */
function legend(entries: [string, string, string | null][]): { body: SVGElement[]; top: number } {
  const body: SVGElement[] = [];
  let [x, y] = [8, 0];
  for (const [name, colour, dash] of entries) {
    const room = 34 + 6.6 * name.length;
    if (x + room > WIDTH && x > 8) {
      [x, y] = [8, y + 20];
    }
    if (dash === null) {
      body.push(svg('rect', { x: at(x), y: y + 4, width: 12, height: 12, fill: colour, class: 'nbcompile-bar' }));
    } else {
      const pattern = { 'stroke-dasharray': dash || null };
      body.push(svg('path', { d: `M${at(x - 4)} ${y + 10}h18`, stroke: colour, 'stroke-width': 2, ...pattern }));
    }
    body.push(words(x + 18, y + 14, name));
    x += room;
  }
  return { body, top: y + 30 };
}

/** A linear axis from zero to `longest` seconds with a few round figures, in units of `factor` seconds. */
function axis(longest: number, factor: number, top: number, bottom: number): SVGElement[] {
  const whole = longest / factor;
  const smallest = 10 ** Math.floor(Math.log10(whole / 2));
  const step = smallest * ([1, 2, 5, 10].find(times => whole / (smallest * times) <= 5.5) ?? 10);
  return Array.from({ length: Math.floor(whole / step) + 1 }, (_, tick) => {
    const x = LEFT + ((tick * step) / whole) * (WIDTH - LEFT - RIGHT);
    const figure = String(Number((tick * step).toPrecision(4)));
    return [
      grid(`M${at(x)} ${top}V${bottom}`),
      words(x, bottom + 16, figure, { 'text-anchor': 'middle', 'fill-opacity': 0.75 })
    ];
  }).flat();
}

/** The powers of ten to write at a logarithmic axis, at most seven. */
function decades(lowest: number, highest: number): number[] {
  const [first, last] = [Math.ceil(lowest), Math.floor(highest)];
  const step = Math.max(1, Math.ceil((last - first) / 6));
  return Array.from({ length: Math.max(0, Math.floor((last - first) / step) + 1) }, (_, index) => first + index * step);
}

/** A row of a chart: wherever in it the pointer is, its figures are told. */
function pointed(y: number, height: number, about: string[], drawn: SVGElement[]): SVGElement {
  const area = svg('rect', { x: 0, y: at(y), width: WIDTH, height, class: 'nbcompile-area' });
  return told(about, [area, ...drawn]);
}

function told(about: string[], drawn: SVGElement[]): SVGElement {
  const said = about.join(' · ');
  return svg(
    'g',
    { class: 'nbcompile-told', tabindex: 0, role: 'img', 'aria-label': said, 'data-about': said },
    ...drawn
  );
}

function lengthOf(bar: IBar): number {
  return [...bar.phases.values()].reduce((sum, taken) => sum + taken, 0);
}

function rectangle(x: number, y: number, width: number, height: number, fill: string, hint: string): SVGElement {
  const place = { x: at(x), y: at(y), width: at(width), height, fill, class: 'nbcompile-bar' };
  return svg('rect', place, svg('title', {}, hint));
}

function words(x: number, y: number, text: string, more: Attributes = {}): SVGElement {
  return svg('text', { x: at(x), y: at(y), ...more }, text);
}

function grid(path: string): SVGElement {
  return svg('path', { d: path, stroke: 'currentColor', 'stroke-opacity': 0.18 });
}

function drawing(height: number, summary: string, body: SVGElement[]): SVGElement {
  const box = `0 0 ${WIDTH} ${Math.round(height)}`;
  return svg('svg', { class: 'nbcompile-chart', role: 'group', 'aria-label': summary, viewBox: box }, ...body);
}

function power(decade: number): string {
  return decade < 4 ? String(10 ** decade) : `${10 ** (decade % 3)} ${'kMG'[Math.floor(decade / 3) - 1] ?? ''}`;
}

function at(place: number): string {
  return place.toFixed(1);
}
