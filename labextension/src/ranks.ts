/**
 * Several processes that train one model: which of them kept the others waiting, as nbcompile/report.py tells it.
 */
import type { IRank, IRecompile, IReport } from './report';

/** A rank that compiled longer than the median of the others by this factor, and by so many seconds, is a straggler. */
const STRAGGLES_FROM = 1.25;
const STRAGGLES_SECONDS = 1;

/** The ranks that compiled clearly longer than the others did, for which all others waited. */
export function stragglers({ ranks }: IReport): IRank[] {
  return ranks.filter(rank => {
    const own = rank.compileSeconds;
    const others = ranks
      .filter(other => other.rank !== rank.rank)
      .map(other => other.compileSeconds)
      .filter(seconds => seconds !== null);
    if (own === null || others.length === 0) {
      return false;
    }
    const usual = median(others);
    return own > STRAGGLES_FROM * usual && own - usual > STRAGGLES_SECONDS;
  });
}

/**
 * What a rank compiled again while another did not: that one waited, in the next exchange between them. Two ranks did the
 * same if their recompiles concern one container of blocks and one reason, numbers in it left aside.
 */
export function recompiledAlone({ ranks }: IReport): [IRank, IRecompile][] {
  const done = ranks.map(rank => counted(rank.recompiles.map(key)));
  const found: [IRank, IRecompile][] = [];
  for (const rank of ranks) {
    const left = new Map<string, number>();
    for (const again of rank.recompiles) {
      const same = key(again);
      const rest = (left.get(same) ?? Math.min(...done.map(counts => counts.get(same) ?? 0))) - 1;
      left.set(same, rest);
      if (rest < 0) {
        found.push([rank, again]);
      }
    }
  }
  return found;
}

function key({ block, reason }: IRecompile): string {
  const container = block.slice(0, Math.max(0, block.lastIndexOf('.')));
  return JSON.stringify([container, reason.replace(/\d+/g, '#')]);
}

function counted(keys: readonly string[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const one of keys) {
    counts.set(one, (counts.get(one) ?? 0) + 1);
  }
  return counts;
}

function median(values: readonly number[]): number {
  const ordered = [...values].sort((a, b) => a - b);
  const [low, high] = [ordered[(ordered.length - 1) >> 1] ?? 0, ordered[ordered.length >> 1] ?? 0];
  return (low + high) / 2;
}
