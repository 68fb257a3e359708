/**
 * The figures behind the charts, as nbcompile/render/series.py takes them from a report.
 */
import { PHASES, PHASE_TITLES, type Figure, type IReport, type IStrategy } from './report';
import { bandOf, verdict } from './ranking';
import { orderedStrategies } from './trials';
import { ABSENT, amount, clean, count, middle, plural, seconds } from './units';

/** How many strategies are drawn, and bars altogether and of one strategy. */
export const MOST_STRATEGIES = 8;
const MOST_BARS = 36;
const MOST_BARS_OF_ONE = 12;

/** Okabe and Ito's palette, made to be told apart by colour-blind readers. */
export const PHASE_COLOURS: ReadonlyMap<string, string> = new Map([
  ['dynamo', '#56B4E9'],
  ['aot_autograd', '#E69F00'],
  ['inductor', '#009E73'],
  ['codegen', '#F0E442'],
  ['kernels', '#0072B2'],
  ['backward', '#D55E00'],
  ['other', '#CC79A7']
]);

// Paul Tol's "bright" palette: also safe, and not that of the phases, as a colour ought to mean one thing.
const NAMED_COLOURS: ReadonlyMap<string, string> = new Map([
  ['eager', '#888888'],
  ['regional', '#4477AA'],
  ['full', '#EE6677'],
  ['hierarchical', '#228833']
]);
const OTHER_COLOURS = ['#AA3377', '#CCBB44', '#66CCEE', '#EE8866', '#77AADD', '#99DDFF', '#44BB99', '#BBCC33'];

/** Line patterns, so that no line depends on its colour alone. */
const DASHES = ['', '6,3', '2,2', '8,3,2,3', '10,4', '4,2', '1,3', '12,3,3,3'];

const FARTHEST = 10 ** 8; // calls; nobody waits longer

/** The compile time of one region, or of several that are drawn as one. */
export interface IBar {
  label: string;
  className: string;
  seconds: number;
  phases: Map<string, number>;
  graphs: number;
}

/** The bars of one strategy; `name` is empty where the report holds no strategies. */
export interface ISection {
  name: string;
  bars: IBar[];
}

/** One strategy's steady time: the median and half of its interquartile range. */
export interface ISteady {
  name: string;
  seconds: number;
  halfSpread: Figure;
  speed: Figure;
  repeats: Figure;
  dispatch: string;
  colour: string;
}

/** Total time against the number of calls; `even` is where compiling has paid for itself. */
export interface ILine {
  name: string;
  cold: number;
  steady: number;
  points: [number, number][];
  even: { calls: number; seconds: number } | null;
  colour: string;
  dash: string;
}

/** Where compile time went, largest first: by strategy if that was measured, else by group and rest. */
export function compileSections(report: IReport, most?: number): ISection[] {
  const every = report.tuning.length > 0 ? orderedStrategies(report) : [...report.strategies];
  const measured = every.filter(([, strategy]) => strategy.regions.length > 0).slice(0, MOST_STRATEGIES);
  const limit = most ?? Math.min(MOST_BARS_OF_ONE, Math.floor(MOST_BARS / Math.max(1, measured.length)));
  const found: [string, (IBar | null)[]][] =
    measured.length > 0
      ? measured.map(([name, strategy]) => [
          clean(name, 40) || '(no name)',
          strategy.regions.map(({ path, className, seconds, phases, graphs }) =>
            bar(path || '(whole model)', className, seconds, phases, graphs)
          )
        ])
      : [
          [
            '',
            [...report.groups, ...report.rest].map(({ path, className, compileSeconds, phases, graphs }) =>
              bar(path || '(model)', className, compileSeconds, phases, graphs)
            )
          ]
        ];
  return found
    .map(([name, bars]) => ({ name, bars: merge(alike(bars.filter(isBar), limit), limit) }))
    .filter(({ bars }) => bars.length > 0);
}

/** The phases that took any time, in the order in which they happen. */
export function phasesOf(sections: readonly ISection[]): string[] {
  return PHASES.filter(phase => sections.some(({ bars }) => bars.some(({ phases }) => phases.has(phase))));
}

/** What compiling bought, eager first. */
export function steadyTimes(report: IReport): ISteady[] {
  const eager = eagerOf(report);
  const found = orderedStrategies(report)
    .flatMap(([name, strategy], index) =>
      strategy.steadySeconds === null
        ? []
        : [
            {
              name: clean(name, 40) || '(no name)',
              seconds: strategy.steadySeconds,
              halfSpread: halfSpread(strategy),
              speed: speed(eager, strategy),
              repeats: strategy.steadyRepeats,
              dispatch: dispatch(strategy),
              colour: colour(name, index)
            }
          ]
    )
    .slice(0, MOST_STRATEGIES);
  return found.some(steady => steady.seconds > 0) ? found : [];
}

/** When compiling is paid back, eager first; empty unless a strategy other than eager has both figures. */
export function payBack(report: IReport): ILine[] {
  const measured = orderedStrategies(report)
    .flatMap(([name, strategy], index) => {
      const { coldSeconds, steadySeconds: steady, breakEvenCalls } = strategy;
      const cold = name === 'eager' ? steady : coldSeconds; // as a trial's total counts
      const even = breakEvenCalls !== null && breakEvenCalls >= 1 && breakEvenCalls <= FARTHEST ? breakEvenCalls : null;
      return cold && steady ? [{ index, name, cold, steady, even }] : [];
    })
    .slice(0, MOST_STRATEGIES);
  if (measured.every(({ name }) => name === 'eager')) {
    return [];
  }
  const latest = Math.max(1, ...measured.map(({ even }) => even ?? 0));
  const decades = Math.max(3, Math.ceil(Math.log10(latest) / 0.62)); // room for a label behind the last crossing
  const calls = [...new Set(Array.from({ length: 6 * decades + 1 }, (_, step) => Math.round(10 ** (step / 6))))];
  return measured.map(({ index, name, cold, steady, even }) => ({
    name: clean(name, 40) || '(no name)',
    cold,
    steady,
    points: calls.map(number => [number, cold + (number - 1) * steady]),
    even: even === null ? null : { calls: even, seconds: cold + (even - 1) * steady },
    colour: colour(name, index),
    dash: DASHES[index % DASHES.length] ?? ''
  }));
}

/** The figures that the others are compared with. */
export function eagerOf(report: IReport): IStrategy | null {
  return orderedStrategies(report).find(([name]) => name === 'eager')?.[1] ?? null;
}

/** What is drawn and written after "±". */
export function halfSpread(strategy: IStrategy): Figure {
  return strategy.steadySpread === null ? null : strategy.steadySpread / 2;
}

/** How many times as fast as eager a call is. */
export function speed(eager: IStrategy | null, strategy: IStrategy): Figure {
  const theirs = eager?.steadySeconds;
  return theirs && strategy.steadySeconds ? amount(theirs / strategy.steadySeconds) : null;
}

/** What calling a strategy's compiled blocks costs beside their kernels, in words; `''` if it was not measured. */
export function dispatch({ dispatchSeconds: one, dispatchCalls: calls, steadySeconds: step }: IStrategy): string {
  if (one === null || !calls) {
    return '';
  }
  const words = `a block's call costs ${seconds(one)} beside its kernels`;
  if (calls === 1) {
    return step === null ? words : `${words}, of a step of ${seconds(step)}`;
  }
  const of = step === null ? 'a step' : `a step of ${seconds(step)}`;
  return `${words}; ${count(calls)} calls: ${seconds(calls * one)} of ${of}`;
}

/** When compiling has paid for itself, in words. */
export function breakEven(eager: IStrategy | null, name: string, strategy: IStrategy): string {
  if (name === 'eager') {
    return ABSENT;
  }
  if (strategy.breakEvenCalls !== null) {
    return plural(strategy.breakEvenCalls, 'call');
  }
  const theirs = eager?.steadySeconds ?? null;
  const ours = strategy.steadySeconds;
  if (eager === null || theirs === null || ours === null) {
    return ABSENT;
  }
  const band = bandOf(strategy);
  if (band !== null) {
    return { faster: ABSENT, level: 'level', slower: 'never' }[verdict(band)];
  }
  const spreads = [eager.steadySpread, strategy.steadySpread].filter(spread => spread !== null);
  if (spreads.length > 0 && Math.abs(theirs - ours) <= spreads.reduce((sum, spread) => sum + spread, 0)) {
    return 'within spread';
  }
  return ours >= theirs ? 'never' : ABSENT;
}

/** All that is known about a bar, line by line. */
export function describeBar(section: ISection, { label, className, seconds: taken, graphs }: IBar): string[] {
  const strategy = section.name ? `${section.name}: ` : '';
  const made = graphs > 0 ? `, ${plural(graphs, 'graph')}` : '';
  const kind = className ? ` (${clean(className, 60)})` : '';
  return [`${strategy}${middle(label, 80)}${kind}`, `${seconds(taken)} in all${made}`];
}

/** One phase of a bar and its share. */
export function describePhase({ phases }: IBar, phase: string): string {
  const taken = phases.get(phase) ?? 0;
  const whole = [...phases.values()].reduce((sum, value) => sum + value, 0);
  return `${PHASE_TITLES.get(phase)}: ${seconds(taken)}, ${((100 * taken) / whole).toFixed(0)} %`;
}

function isBar(value: IBar | null): value is IBar {
  return value !== null;
}

/** One region's bar. What its phases do not account for, and phases of a newer version, count as `other`. */
function bar(
  label: string,
  className: string,
  whole: Figure,
  phases: Map<string, number>,
  graphs: Figure
): IBar | null {
  const split = new Map<string, number>(PHASES.map(phase => [phase, 0]));
  for (const [phase, taken] of phases) {
    const into = split.has(phase) ? phase : 'other';
    split.set(into, (split.get(into) ?? 0) + taken);
  }
  const sum = (): number => [...split.values()].reduce((all, taken) => all + taken, 0);
  const named = sum();
  if (whole && whole - named > 1e-3 * whole) {
    split.set('other', (split.get('other') ?? 0) + whole - named);
  }
  for (const [phase, taken] of split) {
    if (!(taken > 0)) {
      split.delete(phase);
    }
  }
  if (split.size > 1 && (split.get('other') ?? 0) < 1e-3 * sum()) {
    split.delete('other'); // rounding between the compiler's clocks: nobody could see it, yet it has a legend
  }
  return split.size === 0 ? null : { label, className, seconds: whole || named, phases: split, graphs: graphs ?? 0 };
}

/** Of more bars than can be drawn, siblings of one class are one: a hundred equal blocks say one thing. */
function alike(bars: IBar[], most: number): IBar[] {
  if (bars.length <= most + 1) {
    return bars;
  }
  const families = new Map<string, IBar[]>();
  for (const one of bars) {
    const key = JSON.stringify([one.label.replace(/[^.]*$/, ''), one.className]);
    families.set(key, [...(families.get(key) ?? []), one]);
  }
  return [...families.values()].flatMap(family => {
    const [first, last] = [family[0], family[family.length - 1]];
    if (family.length < 3 || !first || !last) {
      return family;
    }
    return [
      sum(
        `${middle(first.label, 60)} … ${last.label.replace(/^.*\./, '')}`,
        `${count(family.length)} × ${first.className}`,
        family
      )
    ];
  });
}

function merge(bars: IBar[], most: number): IBar[] {
  const sorted = [...bars].sort((a, b) => b.seconds - a.seconds);
  if (sorted.length <= most + 1) {
    return sorted; // one bar of "1 other" would take the room of the bar it hides
  }
  const small = sorted.slice(most);
  return [...sorted.slice(0, most), sum(`${small.length} others`, '', small)];
}

function sum(label: string, className: string, bars: readonly IBar[]): IBar {
  const phases = new Map<string, number>();
  for (const phase of PHASES) {
    const taken = bars.reduce((all, one) => all + (one.phases.get(phase) ?? 0), 0);
    if (taken) {
      phases.set(phase, taken);
    }
  }
  const add = (of: (one: IBar) => number): number => bars.reduce((all, one) => all + of(one), 0);
  return { label, className, seconds: add(one => one.seconds), phases, graphs: add(one => one.graphs) };
}

function colour(name: string, index: number): string {
  return NAMED_COLOURS.get(name) ?? (OTHER_COLOURS[index % OTHER_COLOURS.length] as string);
}
