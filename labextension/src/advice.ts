/**
 * What to do, in a sentence: which setting is best for how many calls, in the words of nbcompile/render/advice.py.
 */
import type { IReport } from './report';
import { bestOf, candidatesOf, crossingsOf, isEager, totalSeconds, trialsOf, tunedCalls } from './trials';
import { clean, plural, seconds } from './units';

/** More changes of the best setting than this are not told. */
const MOST_CROSSINGS = 6;

/** What is best for how many calls; empty if nothing was held against eager. */
export function recommendation(report: IReport): string {
  return report.tuning.length > 0 ? tuned(report) : compared(report);
}

function compared(report: IReport): string {
  const measured = trialsOf(report).filter(trial => totalSeconds(trial, 1) !== null);
  if (measured.length < 2 || !measured.some(isEager)) {
    return '';
  }
  const crossings = crossingsOf(report);
  const only = crossings.length === 1 ? crossings[0]?.[1] : undefined;
  if (only !== undefined && isEager(only)) {
    return 'Compiling does not pay here: nothing runs faster than eager by more than the spread.';
  }
  const found = crossings.map(([start, trial], index) => {
    const name = isEager(trial) ? 'do not compile' : clean(trial.name, 40);
    const end = crossings[index + 1]?.[0];
    if (start > 1) {
      return `From ${plural(start, 'call')} on: ${name}`;
    }
    return end === undefined ? `For any number of calls: ${name}` : `Up to ${plural(end - 1, 'call')}: ${name}`;
  });
  return `${found.join('. ')}.`;
}

function tuned(report: IReport): string {
  const calls = tunedCalls(report);
  const best = bestOf(report, calls);
  if (best === null) {
    return 'Nothing was measured, so nothing can be recommended.';
  }
  const choice = isEager(best) ? 'do not compile' : clean(best.name, 80);
  const least = totalSeconds(best, calls) ?? 0;
  const candidates = candidatesOf(report);
  const first = candidates[0];
  const against =
    !isEager(best) && first !== undefined && isEager(first) ? `; eager ${seconds(totalSeconds(first, calls))}` : '';
  const words = [`For ${plural(calls, 'call')}: ${choice}, ${seconds(least)} in total${against}`];
  words.push(...otherNumbers(report, calls));
  const within = report.tuning.find(
    trial =>
      trial.outcome === 'measured' && !candidates.includes(trial) && (totalSeconds(trial, calls) || Infinity) < least
  );
  if (within !== undefined) {
    words.push(`What ${clean(within.name, 80)} gains is within the spread, which counts as none`);
  }
  return `${words.join('. ')}.`;
}

/** For which other numbers of calls something else is the best. */
function otherNumbers(report: IReport, calls: number): string[] {
  const crossings = crossingsOf(report).slice(0, MOST_CROSSINGS);
  return crossings.flatMap(([start, trial], index) => {
    const name = isEager(trial) ? 'do not compile' : clean(trial.name, 80);
    const end = crossings[index + 1]?.[0];
    if (end !== undefined && end <= calls) {
      return [`Up to ${plural(end - 1, 'call')}: ${name}`];
    }
    return start > calls ? [`From ${plural(start, 'call')} on: ${name}`] : [];
  });
}
