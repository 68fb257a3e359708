import assert from 'node:assert/strict';
import { test } from 'node:test';

import { markOf } from '../src/mark';
import { MIME_TYPE } from '../src/mime';
import { lineOf, recompilesIn, timesOf, type IOutputLike } from '../src/recompiles';

const again = (block: string, more: Record<string, unknown> = {}): Record<string, unknown> => ({
  block,
  reason: 'x has another size',
  guard: 'L[x].size()[0] == 2',
  old: '2',
  new: '3',
  remedy: 'pass dynamic=True',
  ...more
});
const report = (...recompiles: unknown[]): Record<string, unknown> => ({
  schema: 1,
  groups: [{ path: 'layers', class_name: 'Block', recompiles }]
});
const output = (data: unknown): IOutputLike => ({ data: { 'text/plain': 'x', [MIME_TYPE]: data }, metadata: {} });

test('an output without a report, or with one without recompiles, gives no mark', () => {
  // GIVEN outputs WHEN they are looked at THEN there is nothing to mark
  assert.equal(recompilesIn([]), null);
  assert.equal(recompilesIn([{ data: { 'text/plain': 'x' } }, {}, { data: null, metadata: 3 }]), null);
  assert.equal(recompilesIn([output(report())]), null);
  assert.equal(recompilesIn([output('{broken'), output({ schema: 7 }), output(['x'])]), null);
});

test('recompiles with one reason are one entry, in data and in metadata', () => {
  // GIVEN two recompiles of one reason and one of another, two of them in the metadata
  const found = recompilesIn([
    output(report(again('layers.0'), again('layers.1'))),
    {
      data: { 'text/plain': 'x' },
      metadata: { [MIME_TYPE]: report(again('layers.0', { reason: 'y', old: '', new: '' })) }
    }
  ]);
  // WHEN they are looked at THEN all count, and each reason is told once
  assert.ok(found);
  assert.equal(timesOf(found), '3 recompiles');
  assert.deepEqual(
    found.reasons.map(({ blocks, times, reason, change }) => [blocks, times, reason, change]),
    [
      ['layers.0 and 1 more', 2, 'x has another size', '2 → 3'],
      ['layers.0', 1, 'y', '']
    ]
  );
  assert.equal(found.reasons.map(lineOf)[0], 'layers: x has another size (2 → 3)');
  // AND what the reason says already is not said twice
  const said = recompilesIn([output(report(again('layers.0', { reason: 'size changed from 2 to 3' })))]);
  assert.equal(said?.reasons[0]?.change, '');
});

test('what two reports in one cell both tell counts once', () => {
  // GIVEN a comparison's output and a report of the same, with a recompile that happened twice alike
  const one = report(again('layers.0'), again('layers.0'));
  const found = recompilesIn([output(one), output(one), output(report(again('layers.1')))]);
  // WHEN they are counted THEN each is counted once
  assert.equal(found?.times, 3);
});

test('many reasons are cut, and it is told how many', () => {
  // GIVEN a thousand reasons WHEN they are looked at THEN twenty are listed
  const many = Array.from({ length: 1000 }, (_, index) => again(`layers.${index}`, { new: String(index) }));
  const found = recompilesIn([output(report(...many))]);
  assert.deepEqual([found?.times, found?.reasons.length, found?.more], [1000, 20, 980]);
});

test('a mark shows a report as text only', () => {
  // GIVEN a hostile report
  const evil = '<img src=x onerror="window.broken = 1">';
  const found = recompilesIn([output(report(again(evil, { reason: evil, remedy: 'javascript:alert(1)' }), null, 3))]);
  assert.ok(found);
  // WHEN it is drawn THEN it is text
  const mark = markOf(found);
  assert.equal(mark.querySelectorAll('img, a, script').length, 0);
  assert.ok(mark.textContent?.includes(evil));
  assert.ok(mark.querySelector('button')?.title.includes(evil));
});

test('a click opens the reasons, and another closes them', () => {
  // GIVEN a mark
  const found = recompilesIn([output(report(again('layers.0')))]);
  assert.ok(found);
  const button = markOf(found).querySelector('button');
  assert.ok(button);
  assert.equal(button.textContent, '↻ 1 recompile');
  // WHEN it is clicked THEN it is open, and closed by the next click
  assert.equal(button.getAttribute('aria-expanded'), 'false');
  button.click();
  assert.equal(button.getAttribute('aria-expanded'), 'true');
  button.click();
  assert.equal(button.getAttribute('aria-expanded'), 'false');
});
