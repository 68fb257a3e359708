import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readReport } from '../src/read';
import { COLUMNS, nextOrder, regionsOf, sorted, type IRegion } from '../src/regions';

function column(title: string): number {
  const found = COLUMNS.findIndex(each => each.title === title);
  assert.ok(found >= 0, title);
  return found;
}

function regions(): readonly IRegion[] {
  const { report, problem } = readReport({
    schema: 1,
    groups: [
      { path: 'layers.10', class_name: 'B', instances: 4, compiled: 4, compile_seconds: 2, recompiles: [{}, {}] },
      { path: 'layers.2', class_name: 'B', instances: 4, compiled: 4, compile_seconds: 9, eager_reason: 'why' },
      { path: 'layers.1', class_name: 'A', instances: 4, compiled: 4, compile_seconds: 2 }
    ],
    rest: [{ path: 'head', class_name: 'H', decision: 'eager', reason: 'one kernel' }]
  });
  assert.ok(report, problem);
  return regionsOf(report);
}

function paths(rows: readonly IRegion[]): string[] {
  return rows.map(row => row.path);
}

test('groups come first, then the rest', () => {
  // GIVEN a report WHEN its regions are listed THEN a part of the rest is one block, which ran compiled or not
  const rows = regions();
  assert.deepEqual(paths(rows), ['layers.10', 'layers.2', 'layers.1', 'head']);
  assert.deepEqual(rows[0]?.recompiles, 2);
  assert.deepEqual([rows[3]?.instances, rows[3]?.compiled, rows[3]?.eager], [1, 0, 1]);
  assert.deepEqual([rows[1]?.about, rows[3]?.about], ['why', 'one kernel']);
});

test('numbers in paths are numbers, equals keep their order, and what is absent comes last', () => {
  // GIVEN regions, one of which has no compile time
  const rows = regions();
  const sort = (title: string, descending: boolean): string[] =>
    paths(sorted(rows, { column: column(title), descending }));
  // WHEN they are sorted THEN
  assert.deepEqual(sort('path', false), ['head', 'layers.1', 'layers.2', 'layers.10']);
  assert.deepEqual(sort('path', true), ['layers.10', 'layers.2', 'layers.1', 'head']);
  assert.deepEqual(sort('compile time', true), ['layers.2', 'layers.10', 'layers.1', 'head']);
  assert.deepEqual(sort('compile time', false), ['layers.10', 'layers.1', 'layers.2', 'head']);
  assert.deepEqual(paths(sorted(rows, null)), paths(rows));
});

test('a column is sorted one way, then the other, then not at all', () => {
  // GIVEN no order WHEN a column of figures is pressed three times THEN the largest come first at first
  const at = column('graphs');
  const first = nextOrder(null, at);
  assert.deepEqual(first, { column: at, descending: true });
  const second = nextOrder(first, at);
  assert.deepEqual(second, { column: at, descending: false });
  assert.equal(nextOrder(second, at), null);
  // AND another column begins anew, a to z if it is text
  assert.deepEqual(nextOrder(second, column('class')), { column: column('class'), descending: false });
});

test('ten thousand regions are sorted at once', () => {
  // GIVEN 10 000 regions WHEN they are sorted by path THEN it takes no time that a reader would notice
  const [one] = regions();
  assert.ok(one);
  const many = Array.from({ length: 10_000 }, (_, index) => ({ ...one, path: `layers.${(index * 7919) % 10_000}` }));
  const before = performance.now();
  const rows = sorted(many, { column: 0, descending: false });
  assert.ok(performance.now() - before < 1500);
  assert.equal(rows[9999]?.path, 'layers.9999');
});
