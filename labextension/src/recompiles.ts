/**
 * What a cell's own outputs say of recompiles: how often, where and why.
 *
 * A report lies in an output's data, or, where the output shows no more than a few lines about it, in its metadata.
 */
import { MIME_TYPE } from './mime';
import { readReport } from './read';
import type { IRecompile, IReport } from './report';
import { clean, middle, plural } from './units';

const MOST_REASONS = 20;
const PATH = 60;

/** An output, as Lab's model and a saved notebook both have it. */
export interface IOutputLike {
  readonly data?: unknown;
  readonly metadata?: unknown;
}

/** Recompiles of one region that have one reason. */
export interface IReason {
  region: string;
  /** The blocks whose calls caused them, in words. */
  blocks: string;
  times: number;
  reason: string;
  /** What it was compiled for and what it met; empty if the guard does not tell. */
  change: string;
  remedy: string;
  caller: string;
}

export interface IRecompiles {
  times: number;
  reasons: IReason[];
  /** How many reasons are not in the list. */
  more: number;
}

/** The recompiles that outputs tell of, each once, however many of the outputs tell it. Null if there are none. */
export function recompilesIn(outputs: readonly IOutputLike[]): IRecompiles | null {
  // two reports about one compilation hold the same recompiles: what both have is counted once
  const most = new Map<string, { path: string; again: IRecompile; times: number }>();
  for (const report of outputs.flatMap(reportsOf)) {
    const counted = new Map<string, { path: string; again: IRecompile; times: number }>();
    for (const { path, recompiles } of report.groups) {
      for (const again of recompiles) {
        const key = JSON.stringify([path, again]);
        const known = counted.get(key);
        counted.set(key, { path, again, times: (known?.times ?? 0) + 1 });
      }
    }
    for (const [key, found] of counted) {
      if (found.times > (most.get(key)?.times ?? 0)) {
        most.set(key, found);
      }
    }
  }
  const alike = new Map<string, { first: { path: string; again: IRecompile }; times: number; blocks: Set<string> }>();
  let times = 0;
  for (const { path, again, times: often } of most.values()) {
    times += often;
    const key = JSON.stringify([path, again.reason || again.guard, again.old, again.new, again.remedy]);
    const known = alike.get(key) ?? { first: { path, again }, times: 0, blocks: new Set<string>() };
    known.times += often;
    known.blocks.add(again.block);
    alike.set(key, known);
  }
  if (times === 0) {
    return null;
  }
  const reasons = [...alike.values()]
    .slice(0, MOST_REASONS)
    .map(({ first: { path, again }, times: often, blocks }) => ({
      region: middle(path, PATH) || '(model)',
      blocks: blocksOf([...blocks]),
      times: often,
      reason: clean(again.reason) || clean(again.guard) || 'the compiler gave no reason',
      change: changeOf(again),
      remedy: clean(again.remedy),
      caller: clean(again.caller, 120)
    }));
  return { times, reasons, more: alike.size - reasons.length };
}

/** How often, in words. */
export function timesOf({ times }: IRecompiles): string {
  return plural(times, 'recompile');
}

/** A reason in one line. */
export function lineOf({ region, reason, change }: IReason): string {
  return `${region}: ${reason}${change ? ` (${change})` : ''}`;
}

function reportsOf({ data, metadata }: IOutputLike): IReport[] {
  return [data, metadata].flatMap(bundle => {
    const found = own(bundle, MIME_TYPE);
    const report = found === undefined ? undefined : readReport(found).report;
    return report === undefined ? [] : [report];
  });
}

/** What varied, unless the reason tells it already. */
function changeOf(again: IRecompile): string {
  const [old, met] = [clean(again.old, 120), clean(again.new, 120)];
  const told = again.reason.includes(`from ${old} to ${met}`);
  return (old || met) && !told ? `${old || '?'} → ${met || '?'}` : '';
}

function blocksOf(blocks: readonly string[]): string {
  const first = middle(blocks[0] ?? '', PATH) || '(model)';
  return blocks.length > 1 ? `${first} and ${blocks.length - 1} more` : first;
}

function own(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null && Object.prototype.hasOwnProperty.call(value, name)
    ? (value as Record<string, unknown>)[name]
    : undefined;
}
