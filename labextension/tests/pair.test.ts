import assert from 'node:assert/strict';
import { test } from 'node:test';

import { differences, type IFigurePair, type IPair } from '../src/pair';
import { drawPair, FIRST_PAIR_ROWS } from '../src/pairdraw';
import { readReport } from '../src/read';
import type { IReport } from '../src/report';

const SIDES = [
  { label: 'before.nbcompile.json', head: 'Sample', created: '' },
  { label: 'after.nbcompile.json', head: 'Sample', created: '' }
] as const;

function report(fields: object): IReport {
  const reading = readReport(JSON.stringify({ schema: 1, ...fields }));
  assert.ok(reading.report, reading.problem);
  return reading.report;
}

/** A comparison of eager (0.1 s) and regional, in round figures. */
function compared(regional: object, more: object = {}): IReport {
  return report({
    environment: { torch: '9.9.9', cpu: 'a processor', device: 'cpu', versions: { numpy: '1' } },
    model: { class_name: 'Sample', parameters: 1000, dtype: 'float32', device: 'cpu' },
    settings: { backend: 'inductor' },
    strategies: { eager: { cold_seconds: 0.2, steady_seconds: 0.1, steady_spread: 0.001 }, regional },
    ...more
  });
}

function figuresOf(pair: IPair, strategy: string): Map<string, IFigurePair> {
  const found = pair.strategies.find(({ name }) => name === strategy);
  assert.ok(found, `there is ${strategy}`);
  return new Map(found.figures.map(figure => [figure.name, figure]));
}

function shown(pair: IPair): HTMLElement {
  return drawPair(SIDES, pair, FIRST_PAIR_ROWS);
}

test('a figure of both is told as ratio, difference and what it means', () => {
  // GIVEN a run before and after a change WHEN they are compared
  const before = compared({ cold_seconds: 4, steady_seconds: 0.05, steady_spread: 0.001, peak_bytes: 1e9, graphs: 2 });
  const after = compared({ cold_seconds: 5, steady_seconds: 0.04, steady_spread: 0.001, peak_bytes: 2e9, graphs: 2 });
  const pair = differences(before, after);
  // THEN nothing but figures differs, and each is told
  assert.deepEqual(pair.cautions, []);
  assert.deepEqual(pair.facts, []);
  const figures = figuresOf(pair, 'regional');
  assert.deepEqual(figures.get('cold start'), {
    name: 'cold start',
    left: '4.00 s',
    right: '5.00 s',
    ratio: '1.25x',
    change: '+1.00 s, slower',
    verdict: 'worse'
  });
  assert.deepEqual(figures.get('steady'), {
    name: 'steady',
    left: '50.0 ± 0.50 ms',
    right: '40.0 ± 0.50 ms',
    ratio: '0.800x',
    change: '−10.0 ms, faster',
    verdict: 'better'
  });
  assert.equal(figures.get('vs eager')?.change, '+0.500x');
  assert.equal(figures.get('vs eager')?.verdict, 'better');
  assert.equal(figures.get('peak memory')?.change, '+1.00 GB, more');
  assert.equal(figures.get('graphs')?.change, 'equal');
  assert.equal(figures.has('max diff'), false, 'what neither has is no row');
});

test('a difference of steady times within both spreads is neither better nor worse', () => {
  // GIVEN steady times whose spreads are 4 and 7 ms
  const before = compared({ steady_seconds: 0.05, steady_spread: 0.004 });
  const at = (seconds: number): IFigurePair | undefined =>
    figuresOf(differences(before, compared({ steady_seconds: seconds, steady_spread: 0.007 })), 'regional').get(
      'steady'
    );
  // WHEN they differ by 10 ms THEN that is within spread; by 12 ms it is a difference
  assert.deepEqual([at(0.04)?.change, at(0.04)?.verdict], ['−10.0 ms, within spread', '']);
  assert.deepEqual([at(0.038)?.change, at(0.038)?.verdict], ['−12.0 ms, faster', 'better']);
});

test('other machines and models are told before any figure', () => {
  // GIVEN reports of two machines, two models and two settings
  const figures = { steady_seconds: 0.05 };
  const other = compared(figures, {
    environment: { torch: '9.9.8', cpu: 'a processor', device: 'cuda', device_name: 'an accelerator', versions: {} },
    model: { class_name: 'Other', parameters: 1000, dtype: 'bfloat16', device: 'cuda' },
    settings: { backend: 'eager' }
  });
  // WHEN they are compared
  const pair = differences(compared(figures), other);
  // THEN the machine and the model come first, then what else differs, each with both values
  assert.deepEqual(pair.cautions, [
    'These reports are of different machines (device, device_name): the machine alone may make the differences below.',
    'These reports are of different models (class_name): the model alone may make the differences below.',
    'They differ in their environment (torch, versions.numpy, versions), model (dtype), settings (backend).'
  ]);
  const facts = new Map(pair.facts.map(({ about, name, left, right }) => [`${about}.${name}`, [left, right]]));
  assert.deepEqual(facts.get('environment.device'), ['cpu', 'cuda']);
  assert.deepEqual(facts.get('environment.device_name'), ['–', 'an accelerator']);
  assert.deepEqual(facts.get('settings.backend'), ['inductor', 'eager']);
  const parts = [...shown(pair).querySelectorAll(':scope > [data-part]')].map(part => part.getAttribute('data-part'));
  assert.deepEqual(parts, ['title', 'sides', 'cautions', 'facts', 'strategies']);
});

test('values that differ only beyond what is shown are told to differ', () => {
  // GIVEN two settings that are equal for longer than what is shown of them WHEN they are compared
  const [one, other] = ['a', 'b'].map(end => compared({}, { settings: { backend: `${'x'.repeat(300)}${end}` } }));
  assert.ok(one && other);
  const [fact] = differences(one, other).facts;
  // THEN that is said
  assert.equal(fact?.name, 'backend');
  assert.match(fact.right, /\(differs in what is not shown\)$/);
  // GIVEN the same fields in another order THEN nothing differs
  const nested = (options: object): IReport => compared({}, { settings: { options } });
  assert.deepEqual(differences(nested({ a: { b: 1, c: 2 } }), nested({ a: { c: 2, b: 1 } })).facts, []);
});

test('reports that do not tell their machine and model are not taken as the same', () => {
  // GIVEN reports without either WHEN they are compared THEN that is said
  assert.deepEqual(differences(report({}), report({})).cautions, [
    'Neither report says on which machine it was made.',
    'Neither report says of which model it is.'
  ]);
});

test('what is only in one report is told with its figures', () => {
  // GIVEN a report with regional and one with full
  const before = compared({ steady_seconds: 0.05 });
  const after = report({ strategies: { full: { steady_seconds: 0.02 } } });
  // WHEN they are compared THEN each says where it is, and its figure is there
  const pair = differences(before, after);
  const only = new Map(pair.strategies.map(({ name, only }) => [name, only]));
  assert.deepEqual(
    [...only],
    [
      ['eager', 'only in A'],
      ['regional', 'only in A'],
      ['full', 'only in B']
    ]
  );
  assert.equal(figuresOf(pair, 'full').get('steady')?.left, '–');
  assert.equal(figuresOf(pair, 'full').get('steady')?.right, '20.0 ms');
  const section = [...shown(pair).querySelectorAll('[data-part=strategies] th[scope=rowgroup]')];
  assert.deepEqual(
    section.map(head => head.textContent),
    ['eageronly in A', 'regionalonly in A', 'fullonly in B']
  );
});

test('a tuning and a comparison share the strategies of the same name, and a setting that failed says so', () => {
  // GIVEN a comparison, and a tuning in which a backend failed
  const trial = (settings: object, figures: object, outcome = 'measured', reason = ''): object => ({
    settings,
    figures,
    outcome,
    reason
  });
  const tuned = report({
    tuning: [
      trial({ strategy: 'regional' }, { cold_seconds: 2, steady_seconds: 0.04 }),
      trial({ strategy: 'regional', backend: 'broken' }, {}, 'failed', 'it is broken')
    ]
  });
  // WHEN they are compared THEN regional stands beside regional
  const pair = differences(compared({ cold_seconds: 4, steady_seconds: 0.05 }), tuned);
  assert.equal(figuresOf(pair, 'regional').get('cold start')?.ratio, '0.500x');
  assert.equal(figuresOf(pair, 'regional, backend=broken').get('failure')?.right, 'failed: it is broken');
});

test('regions are matched by path and class, and the largest difference comes first', () => {
  // GIVEN two plans of which one region took longer, one changed its class, one is gone and one is new
  const group = (path: string, name: string, seconds: number, compiled = 2): object => ({
    path,
    class_name: name,
    instances: 2,
    compiled,
    eager: 2 - compiled,
    compile_seconds: seconds
  });
  const before = report({
    groups: [group('', 'Encoder', 1), group('', 'Decoder', 2), group('a', 'Old', 3), group('gone', 'Gone', 0.5)]
  });
  const after = report({
    groups: [group('', 'Decoder', 6, 1), group('', 'Encoder', 1), group('a', 'New', 3.25), group('new', 'New', 1)]
  });
  // WHEN they are compared
  const pair = differences(before, after);
  // THEN each has its partner, and what changed is told
  const told = pair.regions.first(10).map(({ path, className, time, only }) => [path, className, only || time.change]);
  assert.deepEqual(told, [
    ['(model)', 'Decoder', '+4.00 s, slower'],
    ['new', 'New', 'only in B'],
    ['gone', 'Gone', 'only in A'],
    ['a', 'Old → New', '+250 ms, slower'],
    ['(model)', 'Encoder', 'equal']
  ]);
  assert.deepEqual(pair.regions.first(1)[0]?.counts, ['2', '2 → 1', '0 → 1', '0', '0', '0']);
});

test('compile times of regions are told strategy by strategy', () => {
  // GIVEN two comparisons whose regional compiles took 4 and 3 s in one region
  const of = (seconds: number): IReport =>
    compared({ regions: [{ path: 'layers', class_name: 'Layer', seconds, phases: {}, graphs: 1 }] });
  // WHEN they are compared THEN the region has a row of that strategy
  const [time] = differences(of(4), of(3)).times.first(10);
  assert.deepEqual([time?.strategy, time?.path, time?.time.change], ['regional', 'layers', '−1.00 s, faster']);
});

test('work that is not finished, and what was left out or not read, is told', () => {
  // GIVEN a report whose work goes on, and one with a field that is none
  const going = compared({}, { progress: { stage: 'regional, cold start', done: 3, expected: 30, unit: 'blocks' } });
  const odd = compared({}, { groups: [7] });
  // WHEN they are compared THEN both are said
  const said = differences(going, odd).cautions.join('\n');
  assert.match(said, /^A is not finished: regional, cold start · 3 of 30 blocks done$/m);
  assert.match(said, /^Some of B is not as it has to be, and taken as absent: groups\[0\]: expected an object/m);
});

test('a hostile report is shown as text', () => {
  // GIVEN a report whose every name and text is an attack
  const attack = '<img src=x onerror=alert(1)><a href="javascript:alert(2)">\u202e</a>';
  const hostile = report({
    environment: { [attack]: attack, cpu: attack, ['__proto__']: { polluted: true }, constructor: attack },
    model: { class_name: attack, parameters: -1 },
    settings: { deep: JSON.parse(`${'['.repeat(500)}${']'.repeat(500)}`) },
    strategies: {
      [attack]: { steady_seconds: 1e308, cold_seconds: '7', failure: attack, regions: [{ path: attack }] }
    },
    groups: [{ path: attack.repeat(1000), class_name: attack, compile_seconds: -5 }]
  });
  // WHEN it is laid beside an honest one, on either side
  for (const pair of [differences(hostile, compared({})), differences(compared({}), hostile)]) {
    const drawn = shown(pair);
    // THEN every attack is text, and nothing is longer than a person reads
    assert.equal(drawn.querySelectorAll('img, a, script, iframe, [onerror], [href], [src]').length, 0);
    assert.ok(drawn.textContent.includes('<img src=x onerror=alert(1)>'));
    assert.ok(!drawn.textContent.includes('\u202e'));
    assert.ok(drawn.textContent.length < 10_000, `${drawn.textContent.length} characters`);
  }
  assert.equal(({} as Record<string, unknown>).polluted, undefined);
});

test('ten thousand regions are compared and drawn in a part of a second', () => {
  // GIVEN two reports of 10 000 regions, in opposite order
  const groups = Array.from({ length: 10_000 }, (_, index) => ({
    path: `stage${index}.blocks`,
    class_name: 'Block',
    instances: 2,
    compile_seconds: index
  }));
  const [before, after] = [report({ groups }), report({ groups: [...groups].reverse() })];
  // WHEN they are compared and drawn
  const start = performance.now();
  const drawn = shown(differences(before, after));
  const taken = performance.now() - start;
  // THEN the first rows are there, the number of all is told, and it was quick
  assert.equal(drawn.querySelectorAll('[data-part=regions] tbody tr').length, 100);
  assert.match(drawn.querySelector('[data-part=regions] p')?.textContent ?? '', /^100 of 10000\. Show 500 more$/);
  console.log(`10 000 regions beside 10 000: ${taken.toFixed(0)} ms`);
  assert.ok(taken < 1500, `${taken.toFixed(0)} ms`);
});
