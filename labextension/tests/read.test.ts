import assert from 'node:assert/strict';
import { test } from 'node:test';

import { readReport } from '../src/read';
import type { IReport } from '../src/report';

const NASTY = '<script>alert(1)</script><a href="javascript:alert(2)">\u202e\u0000\ud800';

function read(data: unknown): IReport {
  const { report, problem } = readReport(data);
  assert.ok(report, problem);
  return report;
}

test('what is no report is told in a sentence', () => {
  // GIVEN data of all kinds WHEN it is read THEN the sentence says what was found, and nothing is thrown
  const cases: [unknown, RegExp][] = [
    ['{', /not valid JSON/],
    ['', /not valid JSON/],
    ['[]', /expected a JSON object, found a list/],
    [null, /found nothing/],
    [undefined, /found nothing/],
    [7, /found a number/],
    [{}, /has no schema; this version of nbcompile reads schema 1/],
    [{ schema: 2 }, /has schema 2;/],
    [{ schema: true }, /has schema True;/],
    [{ schema: NASTY.repeat(1000) }, /has schema .{1,60};/],
    [{ schema: [[[[[[]]]]]] }, /has schema \[\[\[…\]\]\];|has schema \[\[.*;/],
    [Object.create({ schema: 1 }), /has no schema/]
  ];
  for (const [data, told] of cases) {
    const { report, problem } = readReport(data);
    assert.equal(report, undefined);
    assert.match(problem ?? '', told);
    assert.ok((problem ?? '').length < 300);
  }
});

test('a report is read from text as from data', () => {
  // GIVEN a report as an output holds it, and as a file does WHEN both are read THEN they are equal
  const data = { schema: 1, model: { class_name: 'Model' }, groups: [{ path: 'a', class_name: 'B', instances: 3 }] };
  assert.deepEqual(read(JSON.stringify(data)), read(data));
  assert.equal(read(data).groups[0]?.instances, 3);
});

test('figures that are no amounts are absent', () => {
  // GIVEN figures that no measurement gives WHEN they are read THEN none of them is a number
  for (const value of [NaN, Infinity, -Infinity, -1, 1e101, '7', [], {}, true, null]) {
    const report = read({ schema: 1, strategies: { eager: { steady_seconds: value, cold_seconds: 1 } } });
    assert.equal(report.strategies.get('eager')?.steadySeconds, null, String(value));
    assert.equal(report.strategies.get('eager')?.coldSeconds, 1);
  }
});

test('keys of a prototype are only keys', () => {
  // GIVEN a file that names what every object inherits
  const own = '{"polluted": 1}';
  const text =
    `{"schema": 1, "__proto__": ${own}, "constructor": ${own}, "model": {"__proto__": ${own}, "class_name": "M"}, ` +
    `"strategies": {"__proto__": {"cold_seconds": 1}, "constructor": {"cold_seconds": 2}, "toString": {"cold_seconds": 3}}}`;
  // WHEN it is read
  const report = read(text);
  // THEN nothing has got more fields, and what is a name stays one
  assert.equal(({} as Record<string, unknown>)['polluted'], undefined);
  assert.equal((report as unknown as Record<string, unknown>)['polluted'], undefined);
  assert.deepEqual([...report.strategies.keys()], ['toString']);
  assert.deepEqual([...report.model.keys()], ['class_name']);
});

test('fields of the wrong kind are absent, and told', () => {
  // GIVEN a report with a field of the wrong kind at every level WHEN it is read
  const report = read({
    schema: 1,
    created: 5,
    environment: [],
    groups: [null, 'x', { path: {}, recompiles: 'none', phases: { dynamo: 'long', kernels: 2 } }],
    rest: {},
    strategies: { regional: 3 },
    tuning: [{ settings: {} }, { settings: { strategy: 'full' }, outcome: 'perfect' }],
    progress: 'soon'
  });
  // THEN what is right is there
  assert.equal(report.created, '');
  assert.equal(report.groups.length, 1);
  assert.deepEqual([...(report.groups[0]?.phases ?? [])], [['kernels', 2]]);
  assert.equal(report.tuning.length, 0);
  assert.equal(report.progress, null);
  // AND each misfit is named
  const told = report.unread.join('\n');
  for (const where of [
    'created',
    'environment',
    'groups[0]',
    'groups[2].path',
    'rest',
    'strategies.regional',
    'tuning[1]'
  ]) {
    assert.ok(told.includes(`${where}:`), `${where} in ${told}`);
  }
});

test('misfits without end are counted, not listed', () => {
  // GIVEN a thousand misfits WHEN they are read THEN some are told, and how many more there are
  const report = read({ schema: 1, groups: Array.from({ length: 1000 }, () => 7) });
  assert.equal(report.unread.length, 21);
  assert.equal(report.unread[20], 'and 980 more like these');
});

test('huge texts, long lists and deep nesting are cut', () => {
  // GIVEN texts of megabytes, lists of a hundred thousand, and nesting of ten thousand levels
  const deep = `${'['.repeat(10_000)}${']'.repeat(10_000)}`;
  const text = JSON.stringify({
    schema: 1,
    notes: Array.from({ length: 100_000 }, () => 'n'),
    groups: [{ path: NASTY.repeat(100_000), class_name: 'B', failure: 'f'.repeat(5_000_000) }]
  }).replace('"schema":1', `"schema":1,"environment":{"deep":${deep}}`);
  // WHEN it is read THEN it is short, and what is left out is told
  const report = read(text);
  assert.equal(report.notes.length, 20_000);
  assert.match(report.leftOut.join('\n'), /notes: 20000 are shown, and there are 80000 more/);
  assert.ok((report.groups[0]?.path.length ?? 0) < 10_000);
  assert.ok((report.groups[0]?.failure.length ?? 0) < 10_000);
  assert.ok(report.environment.has('deep'));
});
