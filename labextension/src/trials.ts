/**
 * What a report lets one choose from, and what is best for how many calls: the arithmetic of nbcompile/report.py.
 */
import { bandOf, best, candidates, envelope, MOST_CALLS, total, type IFigures } from './ranking';
import type { Figure, IReport, IStrategy, ITrial } from './report';
import type { Plain } from './units';

const DEFAULT_CALLS = 1000;

/** The settings of a trial, each with the value that is not worth a word in its name. */
const AXES: ReadonlyMap<string, string | null> = new Map([
  ['strategy', null],
  ['backend', 'inductor'],
  ['mode', 'default'],
  ['dynamic', null],
  ['rest', 'auto']
]);

const IDLE: ReadonlyMap<string, readonly string[]> = new Map([
  ['eager', ['backend', 'mode', 'dynamic', 'rest']],
  ['full', ['rest']],
  ['hierarchical', ['rest']]
]);

const PAY_BACK: ReadonlySet<string> = new Set(['measured', 'stopped']);

/** A setting in short: its strategy, and what differs from the defaults. */
export function nameOf(strategy: string, settings: ReadonlyMap<string, Plain>): string {
  const words = [strategy];
  for (const [axis, usual] of AXES) {
    const value = settings.get(axis);
    if (axis !== 'strategy' && value !== usual && (typeof value === 'string' || typeof value === 'boolean')) {
      words.push(`${axis}=${typeof value === 'string' ? value : value ? 'True' : 'False'}`);
    }
  }
  return words.join(', ');
}

/** The number of calls that a tuning was for. */
export function tunedCalls(report: IReport): number {
  const calls = report.settings.get('calls');
  return typeof calls === 'number' && Number.isInteger(calls) && calls >= 1 && calls <= MOST_CALLS
    ? calls
    : DEFAULT_CALLS;
}

/** What was measured, as trials: those of a tuning, else a comparison's strategies. */
export function trialsOf(report: IReport): ITrial[] {
  if (report.tuning.length > 0) {
    return report.tuning;
  }
  return [...report.strategies].map(([strategy, figures]) => {
    const matter = new Map([...report.settings].filter(([axis]) => !IDLE.get(strategy)?.includes(axis)));
    const outcome = figures.failure ? 'failed' : 'measured';
    return { strategy, name: nameOf(strategy, matter), figures, outcome, reason: '' };
  });
}

/** The trials that can be recommended, eager first. */
export function candidatesOf(report: IReport): ITrial[] {
  const right = trialsOf(report).filter(trial => PAY_BACK.has(trial.outcome));
  const ranked = right.map(rankedAs);
  const eager = ranked.find(({ trial }) => isEager(trial)) ?? null;
  return candidates(ranked, eager).map(({ trial }) => trial);
}

/** The setting with the least total time for so many calls. */
export function bestOf(report: IReport, calls: number): ITrial | null {
  return best(candidatesOf(report).map(rankedAs), calls)?.trial ?? null;
}

/** From how many calls on each setting is the best. */
export function crossingsOf(report: IReport): [number, ITrial][] {
  return envelope(candidatesOf(report).map(rankedAs)).map(([calls, { trial }]) => [calls, trial]);
}

/** Wall time of so many calls, the first one cold. */
export function totalSeconds(trial: ITrial, calls: number): Figure {
  return total(rankedAs(trial), calls);
}

/** Whether a trial is the one that compiles nothing. */
export function isEager(trial: ITrial): boolean {
  return trial.strategy === 'eager';
}

/** A tuning's settings: eager, the best for some number of calls, then by total time, then those without figures. */
export function orderedTrials(report: IReport): ITrial[] {
  const winners = new Set(crossingsOf(report).map(([, trial]) => trial));
  const calls = tunedCalls(report);
  const place = (trial: ITrial): [boolean, boolean, number] => [
    trial.name !== 'eager',
    !winners.has(trial),
    (PAY_BACK.has(trial.outcome) ? totalSeconds(trial, calls) : null) ?? Infinity
  ];
  const placed = report.tuning.map(trial => ({ trial, at: place(trial) }));
  placed.sort(
    ({ at: a }, { at: b }) => Number(a[0]) - Number(b[0]) || Number(a[1]) - Number(b[1]) || compare(a[2], b[2])
  );
  return placed.map(({ trial }) => trial);
}

/** What was measured, with eager, which the others are compared with, in front. */
export function orderedStrategies(report: IReport): [string, IStrategy][] {
  if (report.tuning.length > 0) {
    return orderedTrials(report)
      .filter(trial => PAY_BACK.has(trial.outcome))
      .map(trial => [trial.name, trial.figures]);
  }
  return [...report.strategies].sort(([a], [b]) => Number(a !== 'eager') - Number(b !== 'eager'));
}

/** A trial as it is ranked: eager's first call counts as any later one, for nothing is compiled by it. */
function rankedAs(trial: ITrial): IFigures & { trial: ITrial } {
  const { coldSeconds, steadySeconds, steadySpread } = trial.figures;
  const first = isEager(trial) && coldSeconds !== null ? steadySeconds : coldSeconds;
  return { coldSeconds: first, steadySeconds, steadySpread, band: bandOf(trial.figures), trial };
}

function compare(a: number, b: number): number {
  return a === b ? 0 : a < b ? -1 : 1; // Infinity less Infinity is no number
}
