/**
 * A report's tables as text, as nbcompile/render/tables.py lays them out: what is drawn says what every other front end
 * says. Regions have a table of their own, in regions.ts, as readers sort it.
 */
import type { ICheck, IRecompile, IReport, IStrategy } from './report';
import { breakEven, dispatch, halfSpread, speed } from './series';
import { isEager, orderedTrials, totalSeconds, tunedCalls } from './trials';
import { ABSENT, clean, count, difference, middle, plural, ratio, seconds, size, spreadSeconds } from './units';
import { PATH } from './words';

const MOST_ROWS = 200;
const MOST_CHECKS = 12; // of one strategy; beyond that, regions with one verdict are one row

/** One table. `align` has a letter for each column: l for text, r for figures. */
export interface ITable {
  title: string;
  headers: string[];
  align: string;
  rows: string[][];
  leftOut: number;
  footnote: string;
  /** For each row, more about its last cell. */
  hints: string[];
}

/** Every setting of a tuning; eager first, then those that are the best for some number of calls. */
export function tuningTable(report: IReport): ITable {
  const trials = orderedTrials(report);
  const calls = tunedCalls(report);
  const eager = trials.find(isEager)?.figures ?? null;
  const rows = trials.map(trial => [
    clean(trial.name, 80),
    seconds(trial.figures.coldSeconds),
    spreadSeconds(trial.figures.steadySeconds, halfSpread(trial.figures)),
    ratio(speed(eager, trial.figures)),
    seconds(totalSeconds(trial, calls)),
    size(trial.figures.peakBytes),
    difference(trial.figures.maxAbsDiff),
    breakEven(eager, isEager(trial) || trial.outcome === 'wrong' ? 'eager' : trial.name, trial.figures),
    clean(trial.outcome, 20),
    clean(trial.reason) || ABSENT
  ]);
  const headers = ['setting', 'cold start', 'steady', 'vs eager', `total of ${plural(calls, 'call')}`];
  headers.push('peak memory', 'max diff', 'break-even', 'outcome', 'reason');
  const footnote = repeats(trials.map(trial => trial.figures));
  return withoutEmptyColumns(table('Settings tried', headers, 'lrrrrrrrll', rows, { footnote }), 5);
}

/** What each strategy costs and gains, eager first. A strategy without figures says why. */
export function strategiesTable(report: IReport): ITable {
  const strategies = [...report.strategies].sort(([a], [b]) => Number(a !== 'eager') - Number(b !== 'eager'));
  const eager = report.strategies.get('eager') ?? null;
  const rows = strategies.map(([name, strategy]) => [
    clean(name, 40),
    seconds(strategy.coldSeconds),
    spreadSeconds(strategy.steadySeconds, halfSpread(strategy)),
    ratio(speed(eager, strategy)),
    size(strategy.peakBytes),
    difference(strategy.maxAbsDiff),
    count(strategy.graphs),
    breakEven(eager, name, strategy),
    strategy.failure ? `failed: ${clean(strategy.failure)}` : ABSENT
  ]);
  const headers = ['strategy', 'cold start', 'steady', 'vs eager', 'peak memory', 'max diff', 'graphs', 'break-even'];
  headers.push('failure');
  const calls = strategies.flatMap(([name, strategy]) => {
    const said = dispatch(strategy);
    return said ? [`${clean(name, 40)}: ${said}`] : [];
  });
  const footnote = [repeats(strategies.map(([, strategy]) => strategy)), ...calls].filter(part => part).join('; ');
  return withoutEmptyColumns(table('Strategies', headers, 'lrrrrrrrl', rows, { footnote }), 4);
}

/** Each region's result held against eager's, if that was asked for. */
export function checksTable(report: IReport): ITable {
  const checked: [string, IStrategy][] = [
    ...[...report.strategies],
    ...report.tuning.map((trial): [string, IStrategy] => [trial.name, trial.figures])
  ].filter(([, strategy]) => strategy.checks.length > 0);
  const rows = checked.flatMap(([name, strategy]) => checkRows(strategy).map(row => [clean(name, 40), ...row]));
  const headers = ['strategy', 'block', 'class', 'largest difference', 'gradient difference', 'largest value'];
  headers.push('verdict');
  const footnote =
    'each block on the inputs that it received; drifts: differs by more than torch.testing.assert_close allows for ' +
    'the largest value';
  const from = checked.length === 1 ? 1 : 0;
  const built = table(
    'Checked region by region',
    headers.slice(from),
    'lllrrrl'.slice(from),
    rows.map(row => row.slice(from)),
    { footnote }
  );
  return withoutEmptyColumns(built, headers.length - from - 4);
}

export function variantsTable(report: IReport): ITable {
  const rows = report.groups
    .filter(group => group.variants.length > 1 || group.variants.some(variant => variant.dynamic.length > 0))
    .flatMap(group =>
      group.variants.map(variant => [
        middle(group.path, PATH) || '(model)',
        clean(variant.name, 60),
        count(variant.instances),
        count(variant.graphs),
        seconds(variant.compileSeconds),
        clean(variant.dynamic.join('; ')) || ABSENT
      ])
    );
  const headers = ['path', 'variant', 'blocks', 'graphs', 'compile time', 'compiled for any size of'];
  return withoutEmptyColumns(table('Variants', headers, 'llrrrl', rows), 5);
}

/** Recompiles with one reason are one row: thirty layers that fail the same guard are one thing to mend. */
export function recompilesTable(report: IReport): ITable {
  const alike = new Map<string, IRecompile[]>();
  for (const recompile of report.groups.flatMap(group => group.recompiles)) {
    const reason = clean(recompile.reason) || clean(recompile.guard);
    collect(alike, reason, recompile);
  }
  const rows = [...alike].map(([reason, members]) => {
    const times = members.map(member => member.seconds).filter(taken => taken !== null);
    const forbidden = members.length - times.length;
    const took = times.length > 0 ? seconds(times.reduce((sum, taken) => sum + taken, 0)) : '';
    const limit = forbidden > 0 ? `limit reached ${plural(forbidden, 'time')}` : '';
    const [first] = members;
    return [
      blocks(members.map(member => member.block)),
      count(members.length),
      [took, limit].filter(part => part).join(', '),
      reason,
      same(members.map(member => clean(member.old, 60))),
      same(members.map(member => clean(member.new, 60))),
      middle(first?.caller ?? '', 60) || ABSENT,
      clean(first?.remedy ?? '') || ABSENT
    ];
  });
  const headers = ['block', 'times', 'took', 'reason', 'compiled for', 'met', 'first at', 'what to do'];
  const hints = [...alike.values()].map(([first]) => clean(first?.guard ?? ''));
  return withoutEmptyColumns(table('Recompiles', headers, 'lrllllll', rows, { hints }), 4);
}

/** The processes of a training side by side. */
export function ranksTable(report: IReport): ITable {
  const several = new Set(report.ranks.map(rank => rank.host)).size > 1;
  const rows = report.ranks.map(rank => [
    count(rank.rank),
    several ? clean(rank.host, 40) : ABSENT,
    count(rank.instances),
    count(rank.compiled),
    count(rank.eager),
    count(rank.graphs),
    count(rank.recompiles.length),
    seconds(rank.compileSeconds),
    seconds(rank.backwardSeconds)
  ]);
  const headers = ['rank', 'host', 'blocks', 'compiled', 'eager', 'graphs', 'recompiles', 'compile time'];
  headers.push("backward's part");
  const footnote = 'the other tables are those of the first rank';
  return withoutEmptyColumns(table('Ranks', headers, 'rlrrrrrrr', rows, { footnote }), 1);
}

export function graphBreaksTable(report: IReport): ITable {
  const alike = new Map<string, string[]>();
  for (const found of report.groups.flatMap(group => group.graphBreaks)) {
    const about = [middle(found.location, 60) || ABSENT, clean(found.reason), clean(found.remedy) || ABSENT];
    collect(alike, JSON.stringify(about), found.block);
  }
  const rows = [...alike].map(([about, paths]) => [
    blocks(paths),
    count(paths.length),
    ...(JSON.parse(about) as string[])
  ]);
  return table('Graph breaks', ['block', 'times', 'at', 'reason', 'what to do'], 'lrlll', rows);
}

/** A row for each region; of many, those that drift, and a row for each verdict on the others. */
function checkRows(strategy: IStrategy): string[][] {
  const alike = new Map<string, ICheck[]>();
  const rows: string[][] = [];
  for (const check of strategy.checks) {
    const said = verdict(check, strategy);
    if (check.drifts || strategy.checks.length <= MOST_CHECKS) {
      rows.push(checkRow(check, said));
    } else {
      collect(alike, said, check);
    }
  }
  for (const [said, checks] of alike) {
    const [first] = checks;
    if (checks.length === 1 && first !== undefined) {
      rows.push(checkRow(first, said));
      continue;
    }
    rows.push([
      `${count(checks.length)} others`,
      checks.every(check => check.className === first?.className) ? clean(first?.className ?? '', 40) : ABSENT,
      atMost(checks.map(check => check.maxAbsDiff)),
      atMost(checks.map(check => check.maxAbsGradDiff)),
      atMost(checks.map(check => check.largest)),
      said
    ]);
  }
  return rows;
}

function checkRow(check: ICheck, said: string): string[] {
  return [
    middle(check.block, PATH),
    clean(check.className, 40),
    difference(check.maxAbsDiff),
    difference(check.maxAbsGradDiff),
    difference(check.largest),
    said
  ];
}

function verdict(check: ICheck, strategy: IStrategy): string {
  const said = clean(check.note);
  if (check.drifts) {
    const drifts = check.block === strategy.firstDrift ? 'drifts, the first to do so' : 'drifts';
    return said ? `${drifts}: ${said}` : drifts;
  }
  return said || (check.maxAbsDiff || check.maxAbsGradDiff ? 'within tolerance' : 'equal');
}

function atMost(values: (number | null)[]): string {
  const known = values.filter(value => value !== null);
  return known.length > 0 ? `at most ${difference(known.reduce((most, value) => Math.max(most, value), 0))}` : ABSENT;
}

/** How often each figure was taken, and what "±" means. */
function repeats(strategies: readonly IStrategy[]): string {
  const cold = strategies.filter(one => one.coldSeconds !== null && one.coldRepeats).map(one => one.coldRepeats ?? 0);
  const steady = strategies
    .filter(one => one.steadySeconds !== null && one.steadyRepeats)
    .map(one => one.steadyRepeats ?? 0);
  const parts: string[] = [];
  if (cold.length > 0) {
    parts.push(`cold start: median of ${range(cold)}`);
  }
  if (steady.length > 0) {
    parts.push(`steady: median of ${range(steady)} rounds`);
  }
  if (strategies.some(one => one.steadySeconds !== null && one.steadySpread !== null)) {
    parts.push('± half the interquartile range');
  }
  return parts.join('; ');
}

function range(numbers: readonly number[]): string {
  const least = count(Math.min(...numbers));
  const greatest = count(Math.max(...numbers));
  return least === greatest ? least : `${least} to ${greatest}`;
}

function blocks(paths: readonly string[]): string {
  const different = [...new Set(paths)];
  const first = middle(different[0] ?? '', PATH) || '(model)';
  return different.length === 1 ? first : `${first} and ${different.length - 1} more`;
}

/** What several say: the one thing, or the first and that there are others. */
function same(said: readonly string[]): string {
  const different = [...new Set(said)].filter(one => one);
  const first = different[0] ?? ABSENT;
  return different.length < 2 ? first : `${first} and ${different.length - 1} more`;
}

function collect<T>(into: Map<string, T[]>, key: string, member: T): void {
  const members = into.get(key);
  if (members === undefined) {
    into.set(key, [member]);
  } else {
    members.push(member);
  }
}

function table(
  title: string,
  headers: string[],
  align: string,
  rows: string[][],
  more: { footnote?: string; hints?: string[] } = {}
): ITable {
  const leftOut = Math.max(0, rows.length - MOST_ROWS);
  return { title, headers, align, rows: rows.slice(0, MOST_ROWS), leftOut, footnote: '', hints: [], ...more };
}

/** The table without the columns in which every figure is absent; the first `keep` always stay. */
function withoutEmptyColumns(whole: ITable, keep: number): ITable {
  const kept = whole.headers.map((_, column) => column < keep || whole.rows.some(row => row[column] !== ABSENT));
  const chosen = <T>(items: readonly T[]): T[] => items.filter((_, column) => kept[column]);
  return {
    ...whole,
    headers: chosen(whole.headers),
    align: chosen([...whole.align]).join(''),
    rows: whole.rows.map(chosen)
  };
}
