/**
 * Which of several settings takes the least time in all for a number of calls: what nbcompile/ranking.py computes.
 *
 * A setting costs its cold start and then a steady step for each further call. Arithmetic is exact, in whole numbers of
 * the smallest step that a number can make, so that a bend is never told one call from where the other side tells it.
 */
import type { Figure } from './report';

/** Beyond this many calls nobody asks. */
export const MOST_CALLS = 10 ** 12;

export interface IFigures {
  coldSeconds: Figure;
  steadySeconds: Figure;
  steadySpread: Figure;
}

/** Seconds that so many calls take in all, the first one cold; null without both figures. */
export function total(figures: IFigures, calls: number): number | null {
  const steps = exactTotal(figures, calls);
  return steps === null ? null : toSeconds(steps);
}

/** Those that can be recommended: measured, and eager itself or faster than it by more than the spread. */
export function candidates<T extends IFigures>(settings: readonly T[], eager: T | null): T[] {
  const measured = settings.filter(figures => exactTotal(figures, 1) !== null);
  if (eager === null || exactTotal(eager, 1) === null) {
    return measured;
  }
  return [eager, ...measured.filter(figures => figures !== eager && gains(figures, eager))];
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
  const spread = Math.max(0, figures.steadySpread ?? 0, eager.steadySpread ?? 0);
  return eager.steadySeconds - figures.steadySeconds > spread;
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
