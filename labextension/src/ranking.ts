/**
 * Which of several settings takes the least time in all for a number of calls: what nbcompile/ranking.py computes.
 *
 * A setting costs its cold start and then a steady step for each further call. Arithmetic is exact, in whole numbers of
 * the smallest step that a number can make, so that a bend is never told one call from where the other side tells it.
 */
import type { Figure } from './report';

/** Beyond this many calls nobody asks. */
export const MOST_CALLS = 10 ** 12;

/** Two steady times that lie no further apart than this part of them are level. */
const LEVEL = 0.02;

/** A steady time as part of eager's: the low end of what it may be, the median, and the high end. */
export type Band = readonly [number, number, number];
const EAGER: Band = [1, 1, 1];

export interface IFigures {
  coldSeconds: Figure;
  steadySeconds: Figure;
  steadySpread: Figure;
  band: Band | null;
}

/** The band of what a report holds; null if its rounds were not paired with eager's. */
export function bandOf(figures: { steadyRatio: Figure; steadyRatioLow: Figure; steadyRatioHigh: Figure }): Band | null {
  const { steadyRatio: median, steadyRatioLow: low, steadyRatioHigh: high } = figures;
  if (median === null || low === null || high === null) {
    return null;
  }
  return low > 0 && low <= median && median <= high ? [low, median, high] : null;
}

/** What paired rounds say of a call against eager's. */
export function verdict(band: Band): 'faster' | 'level' | 'slower' {
  if (clearlyLess(band, EAGER)) {
    return 'faster';
  }
  return clearlyLess(EAGER, band) ? 'slower' : 'level';
}

/** Seconds that so many calls take in all, the first one cold; null without both figures. */
export function total(figures: IFigures, calls: number): number | null {
  const steps = exactTotal(figures, calls);
  return steps === null ? null : toSeconds(steps);
}

/**
 * Those that can be recommended: measured, and eager itself or clearly faster than it. Of those that are level with one
 * another by paired rounds only the one that compiles the quickest.
 */
export function candidates<T extends IFigures>(settings: readonly T[], eager: T | null): T[] {
  const measured = settings.filter(figures => exactTotal(figures, 1) !== null);
  if (eager === null || exactTotal(eager, 1) === null) {
    return measured;
  }
  const faster = measured.filter(figures => figures !== eager && gains(figures, eager));
  const kept: T[] = [];
  for (const figures of [...faster].sort((a, b) => (a.coldSeconds ?? 0) - (b.coldSeconds ?? 0))) {
    if (kept.every(cheaper => buys(figures, cheaper))) {
      kept.push(figures);
    }
  }
  return [eager, ...faster.filter(figures => kept.includes(figures))];
}

/** The one with the least total time for so many calls; of equals the first. */
export function best<T extends IFigures>(settings: readonly T[], calls: number): T | null {
  let found: T | null = null;
  let least = 0n;
  for (const figures of settings) {
    const steps = exactTotal(figures, calls);
    if (steps !== null && (found === null || steps < least)) {
      found = figures;
      least = steps;
    }
  }
  return found;
}

/** From how many calls on each is the best, beginning with one call. */
export function envelope<T extends IFigures>(settings: readonly T[], most = MOST_CALLS): [number, T][] {
  let current = best(settings, 1);
  if (current === null) {
    return [];
  }
  const found: [number, T][] = [[1, current]];
  for (;;) {
    const from: T = current;
    const later = settings.flatMap(figures => {
      const calls = overtakes(figures, from);
      return calls === null ? [] : [{ calls, figures }];
    });
    const first = later.reduce((least, { calls }) => (calls < least ? calls : least), BigInt(most) + 1n);
    current = best(
      later.filter(({ calls }) => calls === first).map(({ figures }) => figures),
      Number(first)
    );
    if (first > BigInt(most) || current === null) {
      return found;
    }
    found.push([Number(first), current]);
  }
}

function gains(figures: IFigures, eager: IFigures): boolean {
  if (figures.steadySeconds === null || eager.steadySeconds === null) {
    return false;
  }
  if (figures.band !== null) {
    return clearlyLess(figures.band, EAGER);
  }
  const spread = Math.max(0, figures.steadySpread ?? 0, eager.steadySpread ?? 0);
  return eager.steadySeconds - figures.steadySeconds > spread;
}

/** Whether a setting's calls are clearly faster than those of one that compiles quicker, as far as that is known. */
function buys(figures: IFigures, cheaper: IFigures): boolean {
  return figures.band === null || cheaper.band === null || clearlyLess(figures.band, cheaper.band);
}

function clearlyLess(one: Band, other: Band): boolean {
  return one[1] < (1 - LEVEL) * other[1] && one[1] < other[0] && one[2] < other[1];
}

/** The least number of calls for which a setting takes less time than another, if its calls are faster. */
function overtakes(figures: IFigures, current: IFigures): bigint | null {
  const theirs = exactTotal(figures, 1);
  const ours = exactTotal(current, 1);
  if (theirs === null || ours === null || figures.steadySeconds === null || current.steadySeconds === null) {
    return null;
  }
  const gain = exact(current.steadySeconds) - exact(figures.steadySeconds);
  if (gain <= 0n) {
    return null;
  }
  const calls = floorDivide(theirs - ours, gain) + 2n;
  return calls < 1n ? 1n : calls;
}

function exactTotal(figures: IFigures, calls: number): bigint | null {
  if (figures.coldSeconds === null || figures.steadySeconds === null) {
    return null;
  }
  return exact(figures.coldSeconds) + BigInt(calls - 1) * exact(figures.steadySeconds);
}

function floorDivide(a: bigint, b: bigint): bigint {
  return a >= 0n ? a / b : -((-a + b - 1n) / b);
}

const bits = new DataView(new ArrayBuffer(8));

/** A number that is not negative as a multiple of 2 ** -1074. */
function exact(value: number): bigint {
  bits.setFloat64(0, value);
  const all = bits.getBigUint64(0);
  const exponent = (all >> 52n) & 0x7ffn;
  const fraction = all & 0xfffffffffffffn;
  return exponent === 0n ? fraction : (fraction | 0x10000000000000n) << (exponent - 1n);
}

function toSeconds(steps: bigint): number {
  const shift = Math.max(0, steps.toString(16).length * 4 - 64);
  return Number(steps >> BigInt(shift)) * 2 ** (shift - 1074);
}
