import assert from 'node:assert/strict';
import { test } from 'node:test';

import words from '../../tests/words.json';
import { recommendation } from '../src/advice';
import { readReport } from '../src/read';
import type { IReport } from '../src/report';
import {
  checksTable,
  graphBreaksTable,
  ranksTable,
  strategiesTable,
  tuningTable,
  variantsTable,
  type ITable
} from '../src/tables';
import * as units from '../src/units';
import { environmentLine, head, notes, progressLine, settingsLine, warnings } from '../src/words';

type Call = (...values: unknown[]) => string;

const FUNCTIONS: Record<string, unknown> = {
  seconds: units.seconds,
  clock: units.clock,
  size: units.size,
  short_count: units.shortCount,
  count: units.count,
  difference: units.difference,
  digits: units.digits,
  spread_seconds: units.spreadSeconds,
  clean: units.clean,
  middle: units.middle,
  brief: units.brief,
  decade_seconds: units.decadeSeconds
};

/** Free-form data as a report's reader makes it. */
function plain(value: unknown): unknown {
  const reading = readReport({ schema: 1, settings: { value } });
  return reading.report?.settings.get('value');
}

function read(data: unknown): IReport {
  const { report, problem } = readReport(data);
  assert.ok(report, problem);
  return report;
}

test('figures and texts are written as on the Python side', () => {
  // GIVEN the cases of the Python side, each with what it writes
  const wrong: unknown[] = [];
  for (const [name, values, expected] of words.units as [string, unknown[], string][]) {
    // WHEN the same value is written here
    const isText = name === 'clean' || name === 'brief' || name === 'middle';
    const [first, ...others] = values;
    const told = (FUNCTIONS[name] as Call)(isText && typeof first === 'object' ? plain(first) : first, ...others);
    // THEN not a letter differs
    if (told !== expected) {
      wrong.push({ name, values: JSON.stringify(values).slice(0, 80), told, expected });
    }
  }
  assert.ok(words.units.length > 300);
  assert.deepEqual(wrong, []);
});

test('the line of unfinished work is that of the Python side', () => {
  // GIVEN states of work WHEN they are told THEN it is in the same words
  for (const [progress, expected] of words.progress) {
    const report = read({ schema: 1, progress });
    assert.ok(report.progress);
    assert.equal(progressLine(report.progress), expected);
  }
});

test('a report says the same words as on the Python side', () => {
  // GIVEN reports of a comparison, of a tuning, of plain compiling, of several ranks, and of nothing
  for (const expected of words.reports) {
    // WHEN they are read and told
    const report = read(expected.data);
    // THEN head, advice, warnings, notes and tables are the same
    assert.equal(head(report), expected.head);
    assert.equal(recommendation(report), expected.advice);
    assert.equal(settingsLine(report), expected.settings);
    assert.equal(environmentLine(report), expected.environment);
    assert.deepEqual(
      warnings(report).map(notice => notice.text),
      expected.warnings
    );
    assert.deepEqual(notes(report), expected.notes);
    assert.deepEqual(report.unread, []);
    const builders = [tuningTable, strategiesTable, checksTable, ranksTable, variantsTable, graphBreaksTable];
    const told = builders.map(build => build(report));
    assert.deepEqual(Object.fromEntries(told.map(table => [table.title, lines(table)])), expected.tables);
    const footnotes = told.filter(table => table.title in expected.footnotes);
    assert.deepEqual(Object.fromEntries(footnotes.map(table => [table.title, table.footnote])), expected.footnotes);
  }
});

function lines(table: ITable): string[][] {
  return table.rows.length === 0 ? [] : [table.headers, ...table.rows];
}
