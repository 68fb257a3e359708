import assert from 'node:assert/strict';
import { test } from 'node:test';

import { runOf } from '../src/history';
import { readModels, readStatus } from '../src/protocol';
import { readReport } from '../src/read';
import { compiledLine, obstacle, statusLine, workLine, workShare, workTimes } from '../src/states';

const MODEL = {
  strategy: 'regional',
  backend: 'inductor',
  mode: 'default',
  regions: 12,
  compiled: 3,
  eager: 0,
  pending: 9,
  seconds: 8.1,
  recompiles: 1
};
const WORK = {
  kind: 'compile',
  strategy: 'regional',
  stage: 'regional: cold start (compiling)',
  region: 'layers.3',
  phase: 'kernels',
  elapsed_seconds: 4.25,
  remaining_seconds: 10,
  total_seconds: 64,
  done: 3,
  expected: 12,
  at_least: true,
  unit: 'graphs'
};

test('the status bar tells strategy, backend, regions, time and recompiles', () => {
  // GIVEN states of the kernel WHEN each is told THEN what is not known is left out
  const told = (state: object): string => statusLine(readStatus(state));
  assert.equal(told({}), 'nbcompile: nothing compiled');
  assert.equal(told({ model: MODEL }), 'regional · inductor · 3 of 12 regions · 8.10 s · 1 recompile');
  assert.equal(
    told({ model: { ...MODEL, compiled: 10, eager: 2, pending: 0, seconds: 0 } }),
    'regional · inductor · 10 of 12 regions (2 eager) · 1 recompile'
  );
  // AND while it compiles, the time goes on
  assert.equal(told({ work: WORK, model: MODEL }), 'regional · inductor · 3 of 12 regions · 1 min 4 s · 1 recompile');
  // AND an earlier compilation with another strategy is not taken for the one that goes on
  assert.equal(
    told({ work: { ...WORK, strategy: 'full', at_least: false }, model: MODEL }),
    'full · 3 of 12 graphs · 1 min 4 s'
  );
  const rounds = { ...WORK, strategy: '', stage: 'steady state: round 2 of 5, eager', unit: 'rounds', at_least: false };
  assert.equal(told({ work: rounds, model: MODEL }), 'steady state · 3 of 12 rounds · 1 min 4 s');
});

test('work is told with its place, its share and its times', () => {
  // GIVEN a compile that goes on WHEN it is told THEN so are region, phase, share and estimate
  const { work } = readStatus({ work: WORK });
  assert.ok(work);
  assert.equal(workLine(work), 'regional: cold start (compiling) · layers.3 · Kernel compile (C++/Triton)');
  assert.equal(workTimes(work), '3 of at least 12 graphs · 4.2 s · about 10.0 s left · 1 min 4 s in all');
  assert.deepEqual(workShare(readStatus({ work: WORK, model: MODEL })), { done: 3, of: 12 });
  assert.deepEqual(workShare(readStatus({ work: { ...WORK, done: 20 } })), { done: 12, of: 12 });
  assert.equal(workShare(readStatus({ work: { ...WORK, expected: null } })), null);
  assert.equal(workShare(readStatus({})), null);
});

test('a compilation is told with how its regions ran', () => {
  // GIVEN a compilation before its first call, and after some WHEN each is told THEN in a sentence
  const compiled = (change: object): string => {
    const { model } = readStatus({ model: { ...MODEL, ...change } });
    assert.ok(model);
    return compiledLine(model);
  };
  assert.equal(
    compiled({ compiled: 0, pending: 12, mode: 'max-autotune', dynamic: true }),
    'regional, inductor, max-autotune, dynamic true: compiles at the next call'
  );
  assert.equal(
    compiled({ eager: 1 }),
    'regional, inductor: 3 of 13 regions compiled in 8.10 s, 1 ran eager, 9 not called yet, 1 recompile'
  );
});

test('where the kernel is not to be had, it is told what to do', () => {
  // GIVEN each state of the way to the kernel WHEN it is told THEN only an open one has nothing to say
  assert.match(obstacle('absent', ''), /%load_ext nbcompile/);
  assert.match(obstacle('other', '9.9'), /nbcompile 9\.9, which this extension cannot talk to/);
  assert.equal(obstacle('open', ''), '');
  for (const state of ['connecting', 'none', null] as const) {
    assert.notEqual(obstacle(state, ''), '');
  }
});

test('whatever the kernel sends is read', () => {
  // GIVEN answers that are not as they should be WHEN they are read THEN nothing is thrown, and nothing of it is taken
  for (const data of [null, 3, 'x', [], { work: 3, model: [], waiting: {}, revision: 'x' }, { busy: 'true' }]) {
    const status = readStatus(data);
    assert.equal(status.busy, false);
    assert.equal(status.work, null);
    assert.equal(status.revision, 0);
    assert.deepEqual(readModels(data).models, []);
  }
  // AND of inherited keys none, of hostile text no more than can be shown, of long lists no more than can be drawn
  const hostile = JSON.parse('{"__proto__": {"busy": true, "models": [{}]}, "constructor": {"name": "x"}}') as unknown;
  assert.equal(readStatus(hostile).busy, false);
  assert.deepEqual(readModels(hostile).models, []);
  const text = `<img src=x onerror=alert(1)>\u202e${'x'.repeat(1e6)}`;
  const { models } = readModels({ models: Array.from({ length: 1e5 }, () => ({ name: text, parameters: -1 })) });
  assert.ok(models.length <= 200);
  assert.ok((models[0]?.name.length ?? 0) <= 300);
  assert.ok(!models[0]?.name.includes('\u202e'));
  assert.equal(models[0]?.parameters, null);
  assert.deepEqual(models[0]?.offers.strategies, []);
});

test('a report in an output is a run', () => {
  // GIVEN a report of a comparison in which one strategy has failed
  const { report } = readReport({
    schema: 1,
    model: { class_name: 'Net' },
    strategies: { eager: { cold_seconds: 0.5, steady_seconds: 0.25 }, full: { failure: 'no' } }
  });
  assert.ok(report);
  // WHEN it is listed THEN with what it is and the figures that it has
  assert.deepEqual(runOf(report), {
    what: 'compared',
    model: 'Net',
    figures: [
      { name: 'eager', cold: '500 ms', steady: '250 ms' },
      { name: 'full', cold: 'failed', steady: '–' }
    ]
  });
  // AND one of work that goes on says so
  const running = readReport({ schema: 1, progress: { stage: 'eager: first call' } });
  assert.ok(running.report);
  assert.equal(runOf(running.report).what, 'running:');
});
