import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readReport } from '../src/read';
import type { IReport } from '../src/report';
import { recompilesTable, strategiesTable } from '../src/tables';

function read(data: object): IReport {
  const { report, problem } = readReport({ schema: 1, ...data });
  assert.ok(report, problem);
  return report;
}

test('recompiles with one reason are one row, with the values, the line and the remedy', () => {
  // GIVEN two recompiles for one reason, one of which the limit forbade, and another
  const grew = { reason: 'x grew', guard: 'g', remedy: 'mark it dynamic', caller: 'cell 3, line 2' };
  const recompiles = [
    { ...grew, block: 'layers.0', seconds: 1.5, old: '4', new: '5' },
    { ...grew, block: 'layers.1', seconds: null, old: '4', new: '6' },
    { block: 'layers.0', reason: 'another', seconds: 0.5 }
  ];
  // WHEN they are told THEN
  const table = recompilesTable(read({ groups: [{ path: 'layers', recompiles }] }));
  assert.deepEqual(table.headers, [
    ...['block', 'times', 'took', 'reason', 'compiled for', 'met', 'first at', 'what to do']
  ]);
  assert.deepEqual(table.rows, [
    [
      ...['layers.0 and 1 more', '2', '1.50 s, limit reached 1 time', 'x grew'],
      ...['4', '5 and 1 more', 'cell 3, line 2', 'mark it dynamic']
    ],
    ['layers.0', '1', '500 ms', 'another', '–', '–', '–', '–']
  ]);
  assert.deepEqual(table.hints, ['g', '']);
});

test('a strategy that failed says so in its row', () => {
  // GIVEN a strategy without figures WHEN it is told THEN the reason stands beside it, and eager comes first
  const strategies = { full: { failure: 'no compiler' }, eager: { cold_seconds: 1, steady_seconds: 0.5 } };
  const table = strategiesTable(read({ strategies }));
  assert.deepEqual(table.headers, ['strategy', 'cold start', 'steady', 'vs eager', 'failure']);
  assert.deepEqual(table.rows, [
    ['eager', '1.00 s', '500 ms', '1.00x', '–'],
    ['full', '–', '–', '–', 'failed: no compiler']
  ]);
});
