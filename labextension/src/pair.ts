/**
 * Two reports side by side: what sets their runs apart, and each figure of both with the difference. Nothing is drawn here.
 */
import { regionsOf, type IRegion } from './regions';
import type { Figure, IReport, IStrategy } from './report';
import { breakEven, eagerOf, halfSpread, speed } from './series';
import { orderedStrategies, orderedTrials } from './trials';
import {
  ABSENT,
  brief,
  clean,
  count,
  difference,
  middle,
  ratio,
  seconds,
  size,
  spreadSeconds,
  type Plain
} from './units';
import { PATH, progressLine } from './words';

/** One figure of both reports, as text. */
export interface IFigurePair {
  name: string;
  left: string;
  right: string;
  /** The right figure as so many times the left one. */
  ratio: string;
  /** The right figure less the left one, and what that means. */
  change: string;
  /** Whether the right report's figure is better or worse; empty where that cannot be said. */
  verdict: '' | 'better' | 'worse';
}

/** A strategy, or a tuning's setting, with the figures that at least one report has. */
export interface IStrategyPair {
  name: string;
  only: string;
  figures: IFigurePair[];
}

/** What compiling one region took; `strategy` is empty where it is not a strategy's. */
export interface ITimePair {
  strategy: string;
  path: string;
  className: string;
  time: IFigurePair;
  only: string;
}

/** A region of the plan; what differs is told as `30 → 26`. */
export interface IRegionPair extends ITimePair {
  counts: string[];
}

/** Rows of which only those that are shown are put into words: there may be many thousands. */
export interface IRows<T> {
  length: number;
  first: (most: number) => T[];
}

/** Something that is not the same in both runs. */
export interface IFact {
  about: string;
  name: string;
  left: string;
  right: string;
}

export interface IPair {
  /** What a reader must know before any figure. */
  cautions: string[];
  facts: IFact[];
  strategies: IStrategyPair[];
  times: IRows<ITimePair>;
  regions: IRows<IRegionPair>;
}

/** How the two reports are called in sentences and at the heads of columns. */
export const LEFT = 'A';
export const RIGHT = 'B';

/** The heads of a region's counts. */
export const COUNTS = ['blocks', 'compiled', 'eager', 'graphs', 'recompiles', 'breaks'] as const;

/** The environment's facts of which each makes another machine. */
const MACHINE = new Set(['cpu', 'cores', 'device', 'device_name', 'platform']);

/** The model's facts of which each makes another model, and not the same one run in another way. */
const MODEL = new Set(['class_name', 'parameters']);

/** More names than these are not told in one sentence; the table below has them. */
const MOST_NAMES = 6;

type Side<T> = readonly [left: T | null, right: T | null];

/** Everything that is told of two reports laid side by side. */
export function differences(left: IReport, right: IReport): IPair {
  const facts = [
    ...differing('environment', left.environment, right.environment),
    ...differing('model', left.model, right.model),
    ...differing('settings', left.settings, right.settings)
  ];
  return {
    cautions: [...cautions(left, right, facts), ...unfinished(LEFT, left), ...unfinished(RIGHT, right)],
    facts,
    strategies: strategyPairs(left, right),
    times: timePairs(left, right),
    regions: regionPairs(left, right)
  };
}

/** Why the figures may differ for other reasons than the reader has in mind: machine and model first. */
function cautions(left: IReport, right: IReport, facts: readonly IFact[]): string[] {
  const names = (about: string, chosen: (name: string) => boolean): string =>
    list(facts.filter(fact => fact.about === about && chosen(fact.name)).map(fact => fact.name));
  const machine = names('environment', name => MACHINE.has(name));
  const model = names('model', name => MODEL.has(name));
  const found: string[] = [];
  if (machine) {
    found.push(
      `These reports are of different machines (${machine}): the machine alone may make the differences below.`
    );
  } else if (![...MACHINE].some(name => left.environment.has(name) || right.environment.has(name))) {
    found.push('Neither report says on which machine it was made.');
  }
  if (model) {
    found.push(`These reports are of different models (${model}): the model alone may make the differences below.`);
  } else if (!left.model.has('class_name') && !right.model.has('class_name')) {
    found.push('Neither report says of which model it is.');
  }
  const others: [string, string][] = [
    ['environment', names('environment', name => !MACHINE.has(name))],
    ['model', names('model', name => !MODEL.has(name) && (name !== 'device' || !machine))],
    ['settings', names('settings', () => true)]
  ];
  const told = others.filter(([, said]) => said).map(([about, said]) => `${about} (${said})`);
  if (told.length > 0) {
    found.push(`They differ in their ${told.join(', ')}.`);
  }
  return found;
}

/** What keeps a report from being compared as a whole. */
function unfinished(name: string, report: IReport): string[] {
  const found: string[] = [];
  if (report.progress !== null) {
    found.push(`${name} is not finished: ${progressLine(report.progress)}`);
  }
  if (report.leftOut.length > 0) {
    found.push(`Only a part of ${name} is compared, as there is too much of it: ${clean(report.leftOut.join('; '))}`);
  }
  if (report.unread.length > 0) {
    found.push(`Some of ${name} is not as it has to be, and taken as absent: ${clean(report.unread.join('; '))}`);
  }
  return found;
}

/** The facts that are not the same in both; an object is taken apart, one level deep. */
function differing(about: string, left: ReadonlyMap<string, Plain>, right: ReadonlyMap<string, Plain>): IFact[] {
  const ours = flat(left);
  const theirs = flat(right);
  return [...new Set([...ours.keys(), ...theirs.keys()])].flatMap(name => {
    const [a, b] = [ours.get(name), theirs.get(name)];
    if (exact(a) === exact(b)) {
      return [];
    }
    const shown = (value: Plain | undefined): string => (value === undefined ? ABSENT : brief(value, 80) || '(empty)');
    const alike = shown(a) === shown(b) ? ' (differs in what is not shown)' : '';
    return [{ about, name: clean(name, 60) || '(no name)', left: shown(a), right: `${shown(b)}${alike}` }];
  });
}

function flat(values: ReadonlyMap<string, Plain>): Map<string, Plain> {
  const found = new Map<string, Plain>();
  for (const [key, value] of values) {
    if (value instanceof Map && value.size > 0) {
      for (const [inner, item] of value) {
        found.set(`${key}.${inner}`, item);
      }
    } else if (value !== null) {
      found.set(key, value); // null is "not known", as if the name were not there
    }
  }
  return found;
}

/** A value as text that is equal only for equal values, in whatever order an object has its fields. */
function exact(value: Plain | undefined): string {
  if (value instanceof Map) {
    const fields = [...value].map(([key, item]) => `${JSON.stringify(key)}:${exact(item)}`);
    return `{${fields.sort().join(',')}}`;
  }
  if (Array.isArray(value)) {
    return `[${value.map(exact).join(',')}]`;
  }
  return typeof value === 'string' ? JSON.stringify(value) : String(value);
}

/** What a strategy's rows are: a figure, how it is shown, and what a smaller and a larger one are called. */
interface IKind {
  name: string;
  of: (strategy: IStrategy, eager: IStrategy | null) => Figure;
  shown: (value: Figure) => string;
  words?: readonly [less: string, more: string];
  better?: 'less' | 'more';
}

const COLD: IKind = {
  name: 'cold start',
  of: strategy => strategy.coldSeconds,
  shown: seconds,
  words: ['faster', 'slower'],
  better: 'less'
};
const STEADY: IKind = { ...COLD, name: 'steady', of: strategy => strategy.steadySeconds };
const KINDS: readonly IKind[] = [
  { name: 'vs eager', of: (strategy, eager) => speed(eager, strategy), shown: ratio, better: 'more' },
  {
    name: 'peak memory',
    of: strategy => strategy.peakBytes,
    shown: size,
    words: ['less', 'more'],
    better: 'less'
  },
  { name: 'max diff', of: strategy => strategy.maxAbsDiff, shown: difference },
  { name: 'graphs', of: strategy => strategy.graphs, shown: count }
];

function strategyPairs(left: IReport, right: IReport): IStrategyPair[] {
  const [ours, theirs] = [eagerOf(left), eagerOf(right)];
  return matched(strategiesOf(left), strategiesOf(right), ([name]) => name).map(([a, b]) => {
    const name = (a ?? b)?.[0] ?? '';
    const pair: Side<IStrategy> = [a?.[1] ?? null, b?.[1] ?? null];
    const [first, second] = pair;
    const figure = (kind: IKind): IFigurePair =>
      figurePair(kind, first && kind.of(first, ours), second && kind.of(second, theirs));
    const even = words(
      'break-even',
      first ? breakEven(ours, name, first) : ABSENT,
      second ? breakEven(theirs, name, second) : ABSENT
    );
    const calls = ratioOf(first?.breakEvenCalls ?? null, second?.breakEvenCalls ?? null);
    const failed = words('failure', clean(first?.failure ?? '') || ABSENT, clean(second?.failure ?? '') || ABSENT);
    const figures = [figure(COLD), steadyPair(pair), ...KINDS.map(figure), { ...even, ratio: calls }, failed];
    return {
      name: clean(name, 80) || '(no name)',
      only: onlyIn([a, b]),
      figures: figures.filter(one => one.left !== ABSENT || one.right !== ABSENT)
    };
  });
}

/** Whatever was measured under a name; a tuning's settings that failed are told too. */
function strategiesOf(report: IReport): [string, IStrategy][] {
  if (report.tuning.length === 0) {
    return orderedStrategies(report);
  }
  return orderedTrials(report).map(({ name, figures, outcome, reason }) => {
    const failure = outcome === 'measured' ? '' : `${outcome}${reason ? `: ${reason}` : ''}`;
    return [name, { ...figures, failure: figures.failure || failure }];
  });
}

/** Steady times with their spreads; a difference that is no larger than both together counts as none. */
function steadyPair([left, right]: Side<IStrategy>): IFigurePair {
  const a = left?.steadySeconds ?? null;
  const b = right?.steadySeconds ?? null;
  const shown = (strategy: IStrategy | null): string =>
    strategy === null ? ABSENT : spreadSeconds(strategy.steadySeconds, halfSpread(strategy));
  const pair = { ...figurePair(STEADY, a, b), left: shown(left), right: shown(right) };
  const spreads = [left?.steadySpread ?? null, right?.steadySpread ?? null].filter(spread => spread !== null);
  const within = a !== null && b !== null && a !== b && spreads.length > 0;
  if (within && Math.abs(a - b) <= spreads.reduce((sum, spread) => sum + spread, 0)) {
    return { ...pair, change: `${signed(b - a, seconds)}, within spread`, verdict: '' };
  }
  return pair;
}

function timePairs(left: IReport, right: IReport): IRows<ITimePair> {
  const times = (report: IReport): { strategy: string; path: string; className: string; seconds: Figure }[] =>
    strategiesOf(report).flatMap(([strategy, { regions }]) => regions.map(region => ({ strategy, ...region })));
  const pairs = matched(
    times(left),
    times(right),
    ({ strategy, path, className }) => JSON.stringify([strategy, path, className]),
    ({ strategy, path }) => JSON.stringify([strategy, path])
  );
  return largestFirst(
    pairs,
    time => time.seconds,
    ([a, b]) => ({
      strategy: clean((a ?? b)?.strategy ?? '', 80) || '(no name)',
      ...placeOf(a, b, '(whole model)'),
      time: figurePair({ ...COLD, name: 'compile time' }, a?.seconds ?? null, b?.seconds ?? null)
    })
  );
}

function regionPairs(left: IReport, right: IReport): IRows<IRegionPair> {
  const pairs = matched(
    regionsOf(left),
    regionsOf(right),
    ({ path, className }) => JSON.stringify([path, className]),
    ({ path }) => path
  );
  return largestFirst(
    pairs,
    region => region.compileSeconds,
    ([a, b]) => {
      const counts = (of: (region: IRegion) => Figure): string => {
        const [one, other] = [count(a && of(a)), count(b && of(b))];
        return a === null || one === other ? other : b === null ? one : `${one} → ${other}`;
      };
      return {
        strategy: '',
        ...placeOf(a, b, '(model)'),
        time: figurePair({ ...COLD, name: 'compile time' }, a?.compileSeconds ?? null, b?.compileSeconds ?? null),
        counts: [
          counts(region => region.instances),
          counts(region => region.compiled),
          counts(region => region.eager),
          counts(region => region.graphs),
          counts(region => region.recompiles),
          counts(region => region.graphBreaks)
        ]
      };
    }
  );
}

interface IPlace {
  path: string;
  className: string;
}

function placeOf(a: IPlace | null, b: IPlace | null, whole: string): { path: string; className: string; only: string } {
  const [ours, theirs] = [clean(a?.className ?? '', 40), clean(b?.className ?? '', 40)];
  return {
    path: middle((a ?? b)?.path ?? '', PATH) || whole,
    className: a === null || b === null || ours === theirs ? ours || theirs : `${ours} → ${theirs}`,
    only: onlyIn([a, b])
  };
}

function onlyIn([left, right]: Side<unknown>): string {
  return left === null ? `only in ${RIGHT}` : right === null ? `only in ${LEFT}` : '';
}

function figurePair(kind: IKind, left: Figure, right: Figure): IFigurePair {
  const pair = words(kind.name, kind.shown(left), kind.shown(right));
  if (left === null || right === null) {
    return { ...pair, change: '' };
  }
  if (left === right) {
    return { ...pair, ratio: ratioOf(left, right), change: 'equal' };
  }
  const less = right < left;
  const word = kind.words?.[less ? 0 : 1];
  const verdict = kind.better === undefined ? '' : (kind.better === 'less') === less ? 'better' : 'worse';
  const change = `${signed(right - left, kind.shown)}${word ? `, ${word}` : ''}`;
  return { ...pair, ratio: ratioOf(left, right), change, verdict };
}

/** Two texts; that they are not the same is all that can be told of them. */
function words(name: string, left: string, right: string): IFigurePair {
  const known = left !== ABSENT && right !== ABSENT;
  return { name, left, right, ratio: '', change: known ? (left === right ? 'equal' : 'differs') : '', verdict: '' };
}

function ratioOf(left: Figure, right: Figure): string {
  return left && right !== null && Number.isFinite(right / left) ? ratio(right / left) : '';
}

function signed(change: number, shown: (value: Figure) => string): string {
  return `${change < 0 ? '−' : '+'}${shown(Math.abs(change))}`;
}

function list(names: readonly string[]): string {
  const more = names.length - MOST_NAMES;
  return more > 0 ? `${names.slice(0, MOST_NAMES).join(', ')} and ${more} more` : names.join(', ');
}

/** What belongs together in two lists: by the first key, then what is left by the next; then what is only in the right. */
function matched<T>(left: readonly T[], right: readonly T[], ...keys: ((item: T) => string)[]): Side<T>[] {
  const partners = new Map<T, T>();
  let rest = [...right];
  for (const key of keys) {
    const waiting = new Map<string, T[]>();
    for (const item of rest.reverse()) {
      const named = key(item);
      const queue = waiting.get(named);
      if (queue === undefined) {
        waiting.set(named, [item]);
      } else {
        queue.push(item);
      }
    }
    for (const item of left) {
      const partner = partners.has(item) ? undefined : waiting.get(key(item))?.pop();
      if (partner !== undefined) {
        partners.set(item, partner);
      }
    }
    const taken = new Set(partners.values());
    rest = right.filter(item => !taken.has(item));
  }
  const found: Side<T>[] = left.map(item => [item, partners.get(item) ?? null]);
  return [...found, ...rest.map((item): Side<T> => [null, item])];
}

/** Sorted by how much time a change has won or cost; what is not known in either comes last. */
function largestFirst<T, R>(pairs: readonly Side<T>[], of: (item: T) => Figure, row: (pair: Side<T>) => R): IRows<R> {
  const placed = pairs.map(pair => {
    const [a, b] = [pair[0] && of(pair[0]), pair[1] && of(pair[1])];
    return { pair, size: a === null && b === null ? -1 : Math.abs((b ?? 0) - (a ?? 0)) };
  });
  placed.sort((a, b) => b.size - a.size);
  return { length: placed.length, first: most => placed.slice(0, most).map(({ pair }) => row(pair)) };
}
